//! Ending by a signal: a shell that runs a loop or a script goes on after `exit 130`, but not after a death by INT.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use rustix::process::{DumpableBehavior, Signal};

use crate::deadman::SELF;
use crate::exit::Exit;

/// The word by which this program gives itself this role.
pub(crate) const ROLE: &str = "__die";

/// Which signal this process is to end by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) signal: Signal,
    /// Whether the other processes of our job have yet to get it.
    pub(crate) with_job: bool,
}

impl Death {
    /// Ends this process by the signal; returns when that is not possible.
    ///
    /// A new image of this program has no handlers.
    pub(crate) fn die(self) {
        let job = if self.with_job { "job" } else { "-" };
        let signal = self.signal.as_raw().to_string();
        let _ = Command::new(SELF).arg0("onelock").args([ROLE, &signal, job]).exec();
    }
}

/// Dies by the signal that `words` say. The first process of a PID namespace cannot, and exits with the code for it.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    let [signal, job] = words else { return Exit::USAGE.into() };
    let signal = signal.to_str().and_then(|text| text.parse().ok()).and_then(Signal::from_named_raw);
    let Some(signal) = signal else { return Exit::USAGE.into() };
    // QUIT would leave a core file of this program.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Blocked until both have been sent: the job's signal is ours as well.
    let _ = SigSet::all().thread_block();
    if job == "job" {
        let _ = rustix::process::kill_current_process_group(signal);
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    let _ = SigSet::all().thread_unblock();
    Exit::killed_by(signal.as_raw()).into()
}
