//! Signals to `run`, as one stream.

use std::fs;
use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

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

/// Those that end a program which does not mind them.
pub(super) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Those by which the terminal stops a job in the background. They are heard only while the command runs, when the main
/// thread has TTOU blocked: a write that is stopped again and again would never end.
pub(super) const TERMINAL: [Signal; 2] = [Signal::TTIN, Signal::TTOU];

/// The signals that came in.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// The set of those that were ignored when this program began.
    ignored: u64,
    /// Whether those that tell to end are for us, and USR1 and USR2 for the command alone.
    pub(super) service: bool,
}

impl Signals {
    /// From now on these signals do nothing by themselves. Those that were ignored when this program began, as under
    /// nohup(1), stay ignored, here and in the command.
    pub(super) fn listen(service: bool) -> Result<Self, Failure> {
        let mut signals = Self { streams: Vec::new(), ignored: ignored(), service };
        signals.hear(&HEARD).map_err(Failure::system("signals cannot be listened to"))?;
        Ok(signals)
    }

    /// From now on these do nothing by themselves either.
    pub(super) fn hear(&mut self, which: &[Signal]) -> io::Result<()> {
        for &signal in which {
            if !self.is_ignored(signal) && self.streams.iter().all(|(heard, _)| *heard != signal) {
                self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
            }
        }
        Ok(())
    }

    fn is_ignored(&self, signal: Signal) -> bool {
        self.ignored >> (signal.as_raw() - 1) & 1 == 1
    }

    /// The signal by which this program ends after one of this kind ended its command, as shells expect it; else they
    /// would go on with their loop or script.
    pub(super) fn to_die_of(&self, signal: i32) -> Option<Signal> {
        [Signal::INT, Signal::QUIT].into_iter().find(|s| s.as_raw() == signal && !self.is_ignored(*s))
    }

    /// The next one that ends a program which does not mind it.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            let mut all = self.streams.iter_mut();
            let come = all.find_map(|(kind, stream)| stream.poll_recv(context).is_ready().then_some(*kind));
            come.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

/// The set of signals that are ignored, bit 0 being signal 1; none where the system does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    field.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate hears the same for each of its terms.
    #[tokio::test]
    async fn what_is_heard_twice_comes_once() {
        let mut signals = Signals { streams: Vec::new(), ignored: 0, service: true };
        for _ in 0..3 {
            signals.hear(&TERMINAL).unwrap();
        }
        rustix::process::kill_process(rustix::process::getpid(), Signal::TTIN).unwrap();
        assert_eq!(signals.next().await, Signal::TTIN);
        rustix::process::kill_process(rustix::process::getpid(), Signal::TTOU).unwrap();
        assert_eq!(signals.next().await, Signal::TTOU, "TTIN came again");
    }
}
