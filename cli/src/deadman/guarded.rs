//! The command that the deadman guards: what it does, and what is due.

use std::os::fd::OwnedFd;

use onelock::{BootClock, Clock as _, Timestamp};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus};

use super::LOOK;
use super::group::Group;
use super::limit::{Limit, Outer};
use super::plan::{Plan, Step};
use super::protocol::{Ended, Report};
use crate::exit::Exit;

pub(super) struct Guarded {
    pub(super) group: Group,
    /// Readable when the leader has ended, even if the kernel reaps it and tells nobody.
    leader: Option<OwnedFd>,
    /// Members of the group; see [`Group::alive`].
    known: Vec<i32>,
    pub(super) plan: Plan,
    /// What runs inside this one obey.
    limit: Limit,
    ended: Option<Ended>,
    /// Whether nothing of the group runs any more. Its number may be another group's from then on.
    pub(super) gone: bool,
    /// Who gets the terminal back.
    terminal: Option<Pid>,
    /// A server frees a session's lock when its connection closes, so this copy of it stays open as long as this
    /// process.
    _connections: Vec<OwnedFd>,
}

impl Guarded {
    pub(super) fn new(
        group: Group,
        plan: Plan,
        limit: Limit,
        terminal: Option<Pid>,
        connections: Vec<OwnedFd>,
    ) -> Self {
        let (known, ended, gone) = (Vec::new(), None, false);
        let leader = rustix::process::pidfd_open(group.leader(), PidfdFlags::empty()).ok();
        Self { group, leader, known, plan, limit, ended, gone, terminal, _connections: connections }
    }

    /// Readable when the leader ends.
    pub(super) fn leader_end(&self) -> Option<&OwnedFd> {
        self.leader.as_ref().filter(|_| self.ended.is_none())
    }

    /// Does all that is due now, and says what came of it.
    pub(super) fn look(&mut self, outer: &Outer) -> Vec<Report> {
        let mut reports = Vec::new();
        if !self.gone {
            self.watch_leader(&mut reports);
        }
        if self.gone {
            return reports;
        }
        match self.plan.step(BootClock.now(), outer.deadline()) {
            Step::Term => {
                self.end();
                reports.push(Report::Ending);
            }
            Step::Kill => self.kill(),
            Step::Wait(_) => {}
        }
        if self.ended.is_some() && !self.group.alive(&mut self.known) && !self.limit.has_inner() {
            self.gone = true;
            reports.push(Report::Gone);
        }
        reports
    }

    /// Ends the group: TERM now and KILL after the grace.
    pub(super) fn end(&mut self) {
        if self.has_its_number()
            && let Some(kill) = self.plan.end(BootClock.now())
        {
            self.limit.ending(kill);
            self.group.terminate();
        }
    }

    /// Ends the group without a grace.
    pub(super) fn kill(&mut self) {
        if self.has_its_number() {
            let now = BootClock.now();
            self.plan.kill(now);
            self.limit.ending(now);
            self.group.kill();
        }
    }

    /// When the next look is due.
    pub(super) fn next_look(&self, outer: &Outer) -> Option<Timestamp> {
        if self.gone {
            return None;
        }
        let now = BootClock.now();
        let soon = now + LOOK;
        match self.plan.step(now, outer.deadline()) {
            Step::Wait(at) if self.ended.is_none() => Some(at),
            Step::Wait(at) => Some(at.min(soon)),
            Step::Term => Some(now),
            Step::Kill => Some(soon),
        }
    }

    /// Where `run` cannot do it any more.
    pub(super) fn give_terminal_back(&self) {
        let Some(owner) = self.terminal else { return };
        let Ok(tty) = std::fs::File::open("/dev/tty") else { return };
        if rustix::termios::tcgetpgrp(&tty) == Ok(self.group.leader()) {
            let _ = rustix::termios::tcsetpgrp(&tty, owner);
        }
    }

    /// Looks at the command without reaping it.
    fn watch_leader(&mut self, reports: &mut Vec<Report>) {
        match self.leader_end_status() {
            // It ended and the kernel reaped it.
            Err(Errno::CHILD) => {
                if self.ended.is_none() {
                    reports.push(self.leader_ended(Ended::Code(Exit::INTERNAL.0.into())));
                }
                self.gone = true;
                reports.push(Report::Gone);
            }
            Ok(Some(status)) if self.ended.is_none() => {
                let code = || Ended::Code(status.exit_status().unwrap_or(Exit::INTERNAL.0.into()));
                reports.push(self.leader_ended(status.terminating_signal().map_or_else(code, Ended::Signal)));
            }
            _ => self.watch_stops(reports),
        }
    }

    fn leader_ended(&mut self, ended: Ended) -> Report {
        self.ended = Some(ended);
        Report::Exited(ended)
    }

    fn watch_stops(&self, reports: &mut Vec<Report>) {
        let stop = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = rustix::process::waitid(WaitId::Pid(self.group.leader()), stop)
            && let Some(signal) = status.stopping_signal()
        {
            reports.push(Report::Stopped { signal });
        }
    }

    /// Whether the leader is a child of ours and not reaped: only then is the group's number surely still its own.
    fn has_its_number(&self) -> bool {
        !self.gone && !matches!(self.leader_end_status(), Err(Errno::CHILD))
    }

    /// How the leader ended, if it has; it is not reaped.
    fn leader_end_status(&self) -> Result<Option<WaitIdStatus>, Errno> {
        let exit = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.group.leader()), exit)
    }
}
