//! While the command runs: renewals to the deadman, signals to the command, job control, and the end.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use onelock::{Guard, Locks, Timestamp};
use rustix::process::Signal;

use super::signals::Signals;
use super::terminal::{self, Terminal};
use super::ward::Ward;
use crate::deadman::group::Group;
use crate::deadman::protocol::{Ended, Refusal, Report, Start};
use crate::exit::{Exit, Failure};
use crate::output::{human, say};

/// How long what the command left running in its group may take before we say what we wait for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a group that should be dead is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long a killed group may take to be gone.
const BURIAL: Duration = Duration::from_secs(10);

/// How it went.
pub(super) struct Verdict {
    pub(super) exit: Exit,
    /// Whether the lock was lost while the command ran, or before.
    pub(super) lost: bool,
}

pub(super) struct Supervisor<'a> {
    pub(super) locks: &'a Locks,
    pub(super) guard: &'a Guard,
    pub(super) ward: Ward,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: &'a Terminal,
    pub(super) grace: Duration,
    pub(super) leader_only: bool,
}

/// What is known of a command that was started.
struct Running {
    group: Group,
    /// The last deadline that the deadman was told.
    deadline: Timestamp,
    ended: Option<Ended>,
    lost: bool,
    /// A stop signal that we sent to our own job is about to be heard.
    own_stop: bool,
}

enum Next {
    Renewed(Option<Timestamp>),
    Heard(std::io::Result<Option<Report>>),
    Signal(Signal),
    Look,
    StillThere,
}

impl Supervisor<'_> {
    /// Has the command started, and stays until nothing of its group runs.
    pub(super) async fn run(mut self) -> Result<Verdict, Failure> {
        let deadline = self.guard.deadline();
        let start = Start {
            deadline: deadline.into(),
            ttl: self.guard.ttl(),
            grace: self.grace,
            terminal: self.terminal.ours(),
        };
        self.ward
            .start(start)
            .map_err(|error| Failure::System(format!("the deadman does not answer: {error}")))?;
        let group = match self.ward.report().await {
            Ok(Some(Report::Started { group })) => Group::from_raw(group),
            Ok(Some(Report::Refused(Refusal::TooLate))) => {
                self.say_lost("the command is not started");
                return Ok(Verdict { exit: Exit::LOST, lost: true });
            }
            Ok(Some(Report::Refused(Refusal::System(why)))) => {
                return Err(Failure::System(format!("the command cannot be started: {why}")));
            }
            _ => None,
        };
        let Some(group) = group else {
            return Err(Failure::System("the deadman did not start the command".into()));
        };
        let running = Running { group, deadline, ended: None, lost: false, own_stop: false };
        self.watch(running).await
    }

    async fn watch(mut self, mut running: Running) -> Result<Verdict, Failure> {
        let mut patience = Some(PATIENCE);
        loop {
            match self.next(&running, patience).await {
                Next::Renewed(Some(deadline)) => {
                    running.deadline = deadline;
                    self.ward.renewed(deadline);
                }
                Next::Renewed(None) => {
                    self.say_lost("ending the command");
                    running.lost = true;
                    self.ward.end();
                }
                // The deadman's work, unless it was stopped: then ours.
                Next::Look if self.locks.clock().now() >= running.deadline => running.group.kill(),
                Next::Look => {}
                Next::StillThere => {
                    patience = None;
                    say(format_args!(
                        "the command has ended; waiting for what it left running in its process group"
                    ));
                }
                Next::Signal(signal) => self.signalled(signal, &mut running),
                Next::Heard(Ok(Some(report))) => {
                    if self.heard(&report, &mut running).await {
                        break;
                    }
                }
                Next::Heard(_) => return self.orphaned(running).await,
            }
        }
        self.terminal.take_back(running.group);
        self.ward.dismiss();
        let exit = match running.ended {
            _ if running.lost => Exit::LOST,
            Some(Ended::Code(code)) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
            Some(Ended::Signal(signal)) => Exit::killed_by(signal),
            None => Exit::INTERNAL,
        };
        Ok(Verdict { exit, lost: running.lost })
    }

    async fn next(&mut self, running: &Running, patience: Option<Duration>) -> Next {
        let lingering = running.ended.is_some() && !running.lost;
        tokio::select! {
            biased;
            report = self.ward.report() => Next::Heard(report),
            signal = self.signals.next() => Next::Signal(signal),
            deadline = self.guard.renewed(running.deadline), if !running.lost => Next::Renewed(deadline),
            () = tokio::time::sleep(LOOK), if running.lost => Next::Look,
            () = tokio::time::sleep(patience.unwrap_or_default()), if lingering && patience.is_some() => Next::StillThere,
        }
    }

    /// Takes in what the deadman says. `true`: nothing is left to guard.
    async fn heard(&mut self, report: &Report, running: &mut Running) -> bool {
        match report {
            Report::Started { .. } | Report::Refused(_) => false,
            Report::Ending => {
                if !running.lost {
                    let name = self.guard.name();
                    say(format_args!(
                        "the lease of `{name}` was not renewed in time; ending the command before it runs out"
                    ));
                }
                running.lost = true;
                false
            }
            Report::Stopped { signal } => {
                if let Some(signal) = Signal::from_named_raw(*signal) {
                    self.stopped(signal, running).await;
                }
                false
            }
            Report::Exited(ended) => {
                running.ended = Some(*ended);
                self.terminal.take_back(running.group);
                if matches!(ended, Ended::Signal(_)) {
                    self.terminal.restore_modes();
                }
                self.leader_only && !running.lost
            }
            Report::Gone => true,
        }
    }

    /// Passes a signal on to the command's whole group.
    fn signalled(&self, signal: Signal, running: &mut Running) {
        if signal == Signal::TSTP && std::mem::take(&mut running.own_stop) {
            return;
        }
        if signal == Signal::CONT {
            self.terminal.give(running.group);
        }
        if let Err(error) = running.group.signal(signal) {
            say(format_args!("the signal cannot be passed on: {error}"));
        }
        if signal == Signal::TSTP && terminal::has_job_control() {
            terminal::stop_self();
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it used the terminal from the background.
    async fn stopped(&self, signal: Signal, running: &mut Running) {
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && self.terminal.ours().is_some() {
            // We were brought to the foreground meanwhile.
            self.terminal.give(running.group);
            let _ = running.group.signal(Signal::CONT);
            return;
        }
        let by_terminal = wants_terminal || (signal == Signal::TSTP && self.terminal.is_with(running.group));
        if !by_terminal || running.lost {
            return;
        }
        if !terminal::has_job_control() {
            if signal == Signal::TSTP {
                // Nobody could continue it: as if there were no Ctrl-Z, which is the kernel's rule too.
                let _ = running.group.signal(Signal::CONT);
            }
            return;
        }
        self.suspend(running).await;
    }

    /// Stops together with the command, so that the shell gets its prompt. Nobody renews meanwhile: the lease is made
    /// as long as it can be first, and the deadman watches its end.
    async fn suspend(&self, running: &mut Running) {
        let _ = tokio::time::timeout(PATIENCE, self.guard.extend(self.guard.ttl())).await;
        if !self.guard.is_held() {
            return;
        }
        running.deadline = self.guard.deadline();
        self.ward.renewed(running.deadline);
        self.terminal.take_back(running.group);
        let left = human(Duration::from_secs(self.guard.remaining().as_secs()));
        // The terminal has just shown ^Z.
        if std::io::stderr().is_terminal() {
            let _ = writeln!(std::io::stderr());
        }
        say(format_args!("stopped; unless continued within {left} the command is ended and the lock lost"));
        running.own_stop = true;
        terminal::stop_job();
    }

    /// The deadman is gone, and the command with it. What is left of the group is our child now.
    async fn orphaned(&self, running: Running) -> Result<Verdict, Failure> {
        say(format_args!("the deadman process is gone; ending the command"));
        let until = self.locks.clock().now() + BURIAL;
        while running.group.alive() {
            running.group.kill();
            tokio::time::sleep(LOOK).await;
            if self.locks.clock().now() >= until {
                say(format_args!("some process of the command's group cannot be ended"));
                // Not given back while somebody may work under it: the lease frees it.
                return Err(Failure::System("the lock is left to its lease".into()));
            }
        }
        self.terminal.take_back(running.group);
        self.terminal.restore_modes();
        let lost = running.lost || !self.guard.is_held();
        Ok(Verdict { exit: if lost { Exit::LOST } else { Exit::INTERNAL }, lost })
    }

    fn say_lost(&self, consequence: &str) {
        match self.guard.token() {
            Err(error) if error.kind() == onelock::ErrorKind::Lost => {
                let cause =
                    std::error::Error::source(&error).map(|cause| format!(" ({cause})")).unwrap_or_default();
                say(format_args!("{error}{cause}; {consequence}"));
            }
            _ => {
                say(format_args!("too little is left of the lease of `{}`; {consequence}", self.guard.name()))
            }
        }
    }
}
