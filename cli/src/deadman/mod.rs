//! The deadman: a small process between `run` and the command that ends the command when `run` cannot.
//!
//! It is the command's parent. It never reaps the command, so the number of the command's group cannot be given to
//! another group while anybody might signal it. It is told every new deadline of the lease as a moment of boot time,
//! which means the same in both processes; when one passes without news, or `run` is gone, it ends the group inside the
//! lease. It has a process group of its own and blocks every signal, so only KILL and STOP reach it; the command dies
//! with it by a parent-death signal. Inside another run it obeys that run's deadline as well; see [`limit`].

pub(crate) mod group;
mod guarded;
pub(crate) mod limit;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod shim;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use onelock::{BootClock, Clock as _};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Pid;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::exit::Exit;
use group::Group;
use guarded::Guarded;
use limit::{Limit, Outer};
use plan::{Plan, Step};
use protocol::{Inbox, Order, Refusal, Report, Start};

/// The word by which this program gives itself this role.
pub(crate) const ROLE: &str = "__deadman";

/// How often a group that is ending, or has lost its leader, is looked at: not every end of a process is told to us.
const LOOK: Duration = Duration::from_millis(50);

/// Where this program is, even after its file was replaced.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Guards the command that `words` say.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    match Deadman::new(words).and_then(Deadman::run) {
        Ok(()) => Exit::OK.into(),
        Err(error) => {
            crate::output::say(format_args!("the deadman failed: {error}"));
            Exit::INTERNAL.into()
        }
    }
}

struct Deadman<'a> {
    words: &'a [OsString],
    socket: OwnedFd,
    inbox: Inbox,
    children: SignalFd,
    timer: OwnedFd,
    /// Whether `run` is still there.
    attended: bool,
    outer: Outer,
    guarded: Option<Guarded>,
}

impl<'a> Deadman<'a> {
    fn new(words: &'a [OsString]) -> io::Result<Self> {
        SigSet::all().thread_block()?;
        let child = SigSet::from(nix::sys::signal::Signal::SIGCHLD);
        // Orphans of the command become our children: we hear when they end.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self {
            words,
            socket: io::stdin().as_fd().try_clone_to_owned()?,
            inbox: Inbox::default(),
            children: SignalFd::with_flags(&child, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            timer: rustix::time::timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
            )?,
            attended: true,
            outer: Outer::join(),
            guarded: None,
        })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let reports = self.guarded.as_mut().map(|guarded| guarded.look(&self.outer)).unwrap_or_default();
            for report in reports {
                self.report(&report);
            }
            if !self.attended && self.guarded.as_ref().is_none_or(|guarded| guarded.gone) {
                if let Some(guarded) = &self.guarded {
                    guarded.give_terminal_back();
                }
                return Ok(());
            }
            self.sleep()?;
            self.reap();
            if self.attended && self.listen()? {
                return Ok(());
            }
        }
    }

    /// Reaps the orphans that have ended.
    fn reap(&self) {
        let mut ended = false;
        while let Ok(Some(_)) = self.children.read_signal() {
            ended = true;
        }
        if let Some(guarded) = self.guarded.as_ref().filter(|_| ended) {
            group::reap(Some(guarded.group.leader()));
        }
    }

    /// Sleeps until something happens or the next step is due.
    fn sleep(&self) -> io::Result<()> {
        let until = self.guarded.as_ref().and_then(|guarded| guarded.next_look(&self.outer));
        let zero = Timespec::default();
        let it_value = match until {
            // A time of zero would disarm the timer.
            Some(at) => {
                at.since_origin().max(Duration::from_nanos(1)).try_into().map_err(io::Error::other)?
            }
            None => zero,
        };
        let spec = Itimerspec { it_interval: zero, it_value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        let mut polled =
            vec![PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        let leader = self.guarded.as_ref().and_then(Guarded::leader_end);
        polled.extend(leader.map(|leader| PollFd::new(leader, PollFlags::IN)));
        if self.attended {
            polled.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what `run` has to say. `true`: it said good-bye.
    fn listen(&mut self) -> io::Result<bool> {
        while self.attended {
            match self.inbox.fill(&self.socket) {
                Ok(true) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(false) | Err(_) => self.attended = false,
            }
        }
        while let Some(order) = self.inbox.next() {
            // An order that cannot be read is as bad as none: the group is ended with the error.
            match order.inspect_err(|_| self.end())? {
                // Nobody would give the lock back, and nobody would renew it.
                Order::Start(_) if !self.attended => {}
                Order::Start(start) => self.start(&start),
                Order::Deadline(deadline) => {
                    if let Some(guarded) = &mut self.guarded {
                        guarded.plan.renewed(deadline.into());
                    }
                }
                Order::End => self.end(),
                Order::Bye => return Ok(true),
            }
        }
        if !self.attended {
            self.end();
        }
        Ok(false)
    }

    fn end(&mut self) {
        match &mut self.guarded {
            // The lock of the run around this one may be given back at any moment.
            Some(guarded) if !self.attended && self.outer.unguarded() => guarded.kill(),
            Some(guarded) => guarded.end(),
            None => {}
        }
    }

    fn start(&mut self, start: &Start) {
        let report = match self.spawn(start) {
            Ok(group) => Report::Started { group: group.leader().as_raw_nonzero().get() },
            Err(refusal) => Report::Refused(refusal),
        };
        self.report(&report);
    }

    fn spawn(&mut self, start: &Start) -> Result<Group, Refusal> {
        let plan = Plan::new(start.deadline.into(), start.ttl, start.grace);
        if !matches!(plan.step(BootClock.now(), self.outer.deadline()), Step::Wait(_)) {
            return Err(Refusal::TooLate);
        }
        let system = |text: &dyn std::fmt::Display| Refusal::System(text.to_string());
        let mut files = std::mem::take(&mut self.inbox.files).into_iter();
        let (Some(input), Some(file)) = (files.next(), files.next()) else {
            return Err(system(&"the standard input did not come along"));
        };
        let limit = Limit(file.into());
        let me = rustix::process::getpid();
        let child = Command::new(SELF)
            .arg0("onelock")
            .args(shim::words(me, limit.0.as_raw_fd(), start.foreground))
            .args(self.words)
            .stdin(Stdio::from(input))
            .process_group(0)
            .spawn()
            .map_err(|error| system(&error))?;
        let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = leader.ok_or_else(|| system(&"a process without a number"))?;
        let (group, terminal) = (Group::new(leader), start.terminal.and_then(Pid::from_raw));
        self.guarded = Some(Guarded::new(group, plan, limit, terminal, files.collect()));
        Ok(group)
    }

    /// Tells `run`. When it does not read any more the end of the socket will say so.
    fn report(&self, report: &Report) {
        if self.attended {
            let _ = protocol::send(&self.socket, report, &[]);
        }
    }
}
