//! While the command runs: renewals to the deadman, signals to the command, job control, and the end.

use std::io::IsTerminal as _;
use std::time::Duration;

use onelock::{Guard, Timestamp};
use rustix::process::Signal;

use super::signals::ENDING;
use super::term::Term;
use super::terminal::{self, Terminal};
use super::ward::Ward;
use crate::deadman::group::Group;
use crate::deadman::plan;
use crate::deadman::protocol::{Ended, Refusal, Report, Start};
use crate::death::Death;
use crate::exit::{Exit, Failure};
use crate::output::{human, say, say_all};

/// How long what the command left running in its group may take before we say what we wait for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a group that should be dead is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long a killed group may take to be gone.
const BURIAL: Duration = Duration::from_secs(10);

/// How a hold ended that did not fail.
pub(super) struct End {
    pub(super) exit: Exit,
    /// Whether the lock was lost while the command ran, or before.
    pub(super) lost: bool,
    /// The signal to end by instead, where that is possible.
    pub(super) death: Option<Death>,
    /// The signal by which a service was told to end.
    pub(super) stopped_by: Option<Signal>,
}

impl End {
    pub(super) fn new(exit: Exit) -> Self {
        Self { exit, lost: false, death: None, stopped_by: None }
    }
}

pub(super) struct Supervisor<'a, 'b> {
    pub(super) term: &'a mut Term<'b>,
    pub(super) guard: &'a Guard,
    pub(super) ward: Ward,
    pub(super) terminal: Terminal,
    /// The lease that renewals ask for; the first may be longer, and what comes before a deadline is to fit into all.
    pub(super) ttl: Duration,
}

/// What is known of a command that was started.
struct Running {
    group: Group,
    /// The last deadline that the deadman was told.
    deadline: Timestamp,
    /// The end of the longest hold, or a moment after it.
    longest: Option<Timestamp>,
    /// Members of the group; see [`Group::alive`].
    known: Vec<i32>,
    ended: Option<Ended>,
    lost: bool,
    stopped_by: Option<Signal>,
    /// Whether the command had the terminal when it ended: then the terminal's signals did not reach our job.
    had_terminal: bool,
    /// A stop signal that we sent to our own job is about to be heard.
    own_stop: bool,
}

impl Supervisor<'_, '_> {
    /// Has the command started, and stays until nothing of its group runs.
    pub(super) async fn run(mut self) -> Result<End, Failure> {
        let deadline = self.guard.deadline();
        let longest = self.term.bounds.max_hold.or(self.term.locks.settings().max_hold);
        let longest = longest.map(|hold| self.now() + hold);
        let start = Start {
            deadline: deadline.into(),
            ttl: self.ttl,
            grace: self.term.work.grace,
            terminal: self.terminal.owner(),
            foreground: self.terminal.begins(),
        };
        // Where entries end with the session, a connection that closes frees the lock.
        let connections = !self.term.locks.capabilities().resume;
        let started = self.ward.start(start, connections);
        started.map_err(Failure::system("the deadman does not answer"))?;
        let group = match self.ward.report().await {
            Ok(Some(Report::Started { group })) => Group::from_raw(group),
            Ok(Some(Report::Refused(Refusal::TooLate))) => {
                self.say_lost("the command is not started");
                return Ok(End { lost: true, ..End::new(Exit::LOST) });
            }
            Ok(Some(Report::Refused(Refusal::System(why)))) => {
                return Err(Failure::System(format!("the command cannot be started: {why}")));
            }
            _ => None,
        };
        let group = group.ok_or_else(|| Failure::other("the deadman did not start the command"))?;
        let running = Running {
            group,
            deadline,
            longest,
            known: Vec::new(),
            ended: None,
            lost: false,
            stopped_by: None,
            had_terminal: false,
            own_stop: false,
        };
        self.watch(running).await
    }

    async fn watch(mut self, mut running: Running) -> Result<End, Failure> {
        let mut patient = true;
        loop {
            let lingering = running.ended.is_some() && !running.lost;
            tokio::select! {
                biased;
                report = self.ward.report() => {
                    let Ok(Some(report)) = report else { return self.orphaned(running).await };
                    if self.heard(&report, &mut running).await {
                        break;
                    }
                }
                signal = self.term.signals.next() => self.signalled(signal, &mut running).await,
                deadline = self.guard.renewed(running.deadline), if !running.lost => {
                    if let Some(deadline) = deadline {
                        running.deadline = deadline;
                        self.ward.renewed(deadline);
                    } else {
                        self.say_lost("ending the command");
                        running.lost = true;
                        self.ward.end();
                    }
                }
                // The deadman's work, unless it was stopped: then ours.
                () = tokio::time::sleep(LOOK), if running.lost => {
                    if self.now() >= running.deadline {
                        running.group.kill();
                    }
                }
                () = tokio::time::sleep(PATIENCE), if lingering && patient => {
                    patient = false;
                    let what = "waiting for what it left running in its process group";
                    say(format_args!("the command has ended; {what}"));
                }
            }
        }
        self.terminal.take_back(running.group);
        self.ward.dismiss();
        let (exit, death) = match running.ended {
            _ if running.lost => (Exit::LOST, None),
            Some(Ended::Code(code)) => (Exit(u8::try_from(code).unwrap_or(u8::MAX)), None),
            Some(Ended::Signal(signal)) => (Exit::killed_by(signal), self.term.signals.to_die_of(signal)),
            None => (Exit::INTERNAL, None),
        };
        let death = death.map(|signal| Death { signal, with_job: running.had_terminal });
        Ok(End { exit, lost: running.lost, death, stopped_by: running.stopped_by })
    }

    fn now(&self) -> Timestamp {
        self.term.locks.clock().now()
    }

    /// Takes in what the deadman says. `true`: nothing is left to guard.
    async fn heard(&mut self, report: &Report, running: &mut Running) -> bool {
        match report {
            Report::Started { .. } | Report::Refused(_) => false,
            Report::Ending => {
                if !running.lost {
                    // The hold began a moment before the command.
                    let over = running.longest.is_some_and(|end| running.deadline + PATIENCE >= end);
                    let why =
                        if over { "longest hold is nearly over" } else { "lease was not renewed in time" };
                    say(format_args!("the {why}: ending the command before `{}` is lost", self.guard.name()));
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
                running.had_terminal = self.terminal.is_with(running.group);
                self.terminal.take_back(running.group);
                if matches!(ended, Ended::Signal(_)) {
                    self.terminal.restore_modes();
                }
                self.term.leader_only && !running.lost
            }
            Report::Gone => true,
        }
    }

    /// Passes a signal on to the command's whole group.
    async fn signalled(&self, signal: Signal, running: &mut Running) {
        match signal {
            signal if self.term.signals.service && ENDING.contains(&signal) => {
                running.stopped_by = Some(signal);
                return self.ward.end();
            }
            Signal::TSTP if std::mem::take(&mut running.own_stop) => return,
            Signal::TTIN | Signal::TTOU => return self.terminal.asked_by_ours(running.group),
            Signal::CONT => self.terminal.give(running.group),
            _ => {}
        }
        if let Err(error) = running.group.signal(signal) {
            say(format_args!("the signal cannot be passed on: {error}"));
        }
        if signal == Signal::TSTP && !running.lost && terminal::has_job_control() {
            self.suspend(running, terminal::stop_self).await;
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it used the terminal from the background.
    async fn stopped(&self, signal: Signal, running: &mut Running) {
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && self.terminal.asked(running.group) {
            let _ = running.group.signal(Signal::CONT);
            return;
        }
        // STOP is how a run inside this one stops itself.
        let by_key =
            (signal == Signal::TSTP || signal == Signal::STOP) && self.terminal.is_with(running.group);
        if !(wants_terminal || by_key) || running.lost {
            return;
        }
        if terminal::has_job_control() {
            running.own_stop = true;
            self.suspend(running, terminal::stop_job).await;
        } else if signal == Signal::TSTP || (by_key && self.ward.limit.has_inner()) {
            // Nobody could continue it: as if there were no Ctrl-Z, which is the kernel's rule too.
            let _ = running.group.signal(Signal::CONT);
        }
    }

    /// Stops together with the command, so that the shell gets its prompt. Nobody renews meanwhile: the lease is made
    /// as long as it can be first, and the deadman watches its end.
    async fn suspend(&self, running: &mut Running, stop: fn()) {
        let _ = tokio::time::timeout(PATIENCE, self.guard.extend(self.ttl)).await;
        if !self.guard.is_held() {
            running.own_stop = false;
            return;
        }
        running.deadline = self.guard.deadline();
        self.ward.renewed(running.deadline);
        self.terminal.take_back(running.group);
        let left = self.guard.remaining().saturating_sub(plan::lead(self.ttl, self.term.work.grace));
        let left = human(Duration::from_secs(left.as_secs()));
        let text = format!("stopped; unless continued within {left} the command is ended and the lock lost");
        // A terminal has just shown ^Z.
        say_all(if std::io::stderr().is_terminal() { "\n" } else { "" }, &[text]);
        stop();
    }

    /// The deadman is gone, and the command with it. What is left of the group is our child now.
    async fn orphaned(&self, mut running: Running) -> Result<End, Failure> {
        say(format_args!("the deadman process is gone; ending the command"));
        let until = self.now() + BURIAL;
        while running.group.alive(&mut running.known) || self.ward.limit.has_inner() {
            running.group.kill();
            tokio::time::sleep(LOOK).await;
            if self.now() >= until {
                say(format_args!("some process of the command's group cannot be ended"));
                // Not given back while somebody may work under it: the lease frees it.
                return Err(Failure::Left);
            }
        }
        self.terminal.take_back(running.group);
        self.terminal.restore_modes();
        let lost = running.lost || !self.guard.is_held();
        let exit = if lost { Exit::LOST } else { Exit::INTERNAL };
        Ok(End { lost, stopped_by: running.stopped_by, ..End::new(exit) })
    }

    fn say_lost(&self, consequence: &str) {
        match self.guard.token() {
            Err(error) if error.kind() == onelock::ErrorKind::Lost => {
                let cause =
                    std::error::Error::source(&error).map(|cause| format!(" ({cause})")).unwrap_or_default();
                say(format_args!("{error}{cause}; {consequence}"));
            }
            _ => say(format_args!("the lease of `{}` is nearly over; {consequence}", self.guard.name())),
        }
    }
}
