//! The terminal: who is in its foreground, and stopping together with the command.

use std::cell::Cell;
use std::fs::File;

use rustix::process::{Pid, Signal};
use rustix::termios::{OptionalActions, Termios};

use crate::deadman::group::{self, Group, Process};

/// The controlling terminal, if there is one; by default, for a command that gets none.
#[derive(Debug, Default)]
pub(super) struct Terminal {
    tty: Option<File>,
    modes: Option<Termios>,
    /// Our group.
    own: Option<Pid>,
    /// Whether the command gets the terminal whenever our job is in its foreground. Where other processes belong to
    /// our job (a pipe, a script) it does so only from when it has asked for it.
    wanted: Cell<bool>,
}

impl Terminal {
    pub(super) fn open() -> Self {
        let tty = File::open("/dev/tty").ok();
        let modes = tty.as_ref().and_then(|tty| rustix::termios::tcgetattr(tty).ok());
        let wanted = Cell::new(tty.is_some() && !group::shared());
        Self { tty, modes, own: group::own(), wanted }
    }

    /// Our group, if there is a terminal that it may want back.
    pub(super) fn owner(&self) -> Option<i32> {
        self.tty.as_ref().and(self.own).map(|own| own.as_raw_nonzero().get())
    }

    /// Whether the command is to begin in the foreground.
    pub(super) fn begins(&self) -> bool {
        self.wanted.get() && self.ours()
    }

    /// Whether our group is in the foreground and so has the terminal to give.
    pub(super) fn ours(&self) -> bool {
        self.own.is_some() && self.foreground() == self.own
    }

    pub(super) fn is_with(&self, group: Group) -> bool {
        self.foreground() == Some(group.leader())
    }

    fn foreground(&self) -> Option<Pid> {
        rustix::termios::tcgetpgrp(self.tty.as_ref()?).ok()
    }

    /// Gives the terminal to the command, if it wants it and it is ours.
    pub(super) fn give(&self, group: Group) {
        if self.wanted.get() && self.ours() {
            self.set_foreground(group.leader());
        }
    }

    /// The command was stopped because it used the terminal from the background: gives it, if it is ours.
    pub(super) fn asked(&self, group: Group) -> bool {
        let ours = self.ours();
        if ours {
            self.wanted.set(true);
            self.give(group);
        }
        ours
    }

    /// Another process of our job was stopped because it used the terminal: takes it back for that, if the command has
    /// it.
    pub(super) fn asked_by_ours(&self, group: Group) {
        if self.is_with(group) {
            self.wanted.set(false);
            self.take_back(group);
            let _ = rustix::process::kill_current_process_group(Signal::CONT);
        }
    }

    /// Takes the terminal back, if the command has it.
    pub(super) fn take_back(&self, group: Group) {
        if let Some(own) = self.own.filter(|_| self.is_with(group)) {
            self.set_foreground(own);
        }
    }

    /// As it was when we began: for a command that was killed and could not do it itself.
    pub(super) fn restore_modes(&self) {
        if let (Some(tty), Some(modes), true) = (&self.tty, &self.modes, self.ours()) {
            let _ = rustix::termios::tcsetattr(tty, OptionalActions::Drain, modes);
        }
    }

    /// SIGTTOU is blocked in this thread, so asking from the background does not stop us.
    fn set_foreground(&self, group: Pid) {
        if let Some(tty) = &self.tty {
            let _ = rustix::termios::tcsetpgrp(tty, group);
        }
    }
}

/// Stops this process and the other processes of its job, as Ctrl-Z would have. Returns when it is continued.
pub(super) fn stop_job() {
    // Ours has a handler and stops nobody; the caller is about to hear of it and must not mind.
    let _ = rustix::process::kill_current_process_group(Signal::TSTP);
    stop_self();
}

/// Stops this process alone. Returns when it is continued.
pub(super) fn stop_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// Whether somebody would continue us if we stopped: the kernel's rule, which ignores Ctrl-Z for a process group
/// none of whose members has a parent in another group of the same session.
pub(super) fn has_job_control() -> bool {
    let (Some(own), Ok(session)) =
        (Process::of(rustix::process::getpid().as_raw_nonzero().get()), nix::unistd::getsid(None))
    else {
        return false;
    };
    let mut at = own;
    while let Some(parent) = Process::of(at.parent) {
        if nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(parent.pid))) != Ok(session) {
            return false;
        }
        if parent.group != own.group {
            return true;
        }
        at = parent;
    }
    false
}
