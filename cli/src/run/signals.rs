//! Signals to `run`, as one stream.

use std::fs;
use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Those that are passed on to the command. Stopping and continuing have rules of their own.
const HEARD: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals that came in.
#[derive(Debug)]
pub(super) struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// From now on these signals do nothing by themselves. Those that were ignored when this program began, as under
    /// nohup(1), stay ignored, here and in the command.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let (sender, receiver) = mpsc::unbounded_channel();
        for heard in HEARD.into_iter().filter(|s| ignored >> (s.as_raw() - 1) & 1 == 0) {
            let mut stream = signal(SignalKind::from_raw(heard.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(heard).is_ok() {} });
        }
        Ok(Self(receiver))
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // All of them are ignored.
            None => std::future::pending().await,
        }
    }
}

/// The set of signals that are ignored, bit 0 being signal 1; none where the system does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    field.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
