//! Runs inside runs: by when the command of an outer run must have ended.
//!
//! The command of a run can be another run, whose own command is in a group that the outer deadman does not signal. So
//! each run publishes its deadline in a file in memory, which the environment of its command names. An inner deadman
//! ends its command by the earliest of the deadlines around it, and keeps the file of the next outer run locked while
//! anything of its own group runs: until then the outer group does not count as ended.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use onelock::Timestamp;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FlockOperation, MemfdFlags, flock};
use rustix::process::{Pid, PidfdFlags};
use rustix::time::Timespec;

use super::group::{self, Process};
use super::protocol::Moment;

/// Names the files of the runs around a command, the outermost first: each `deadman:descriptor:group`.
pub(crate) const VARIABLE: &str = "ONELOCK_OUTER";

const FILE: &str = "onelock-limit";

/// Two moments of boot time in nanoseconds: the deadline of the lease, and when a group that is being ended is killed.
const DEADLINE: u64 = 0;
const KILL: u64 = 8;

const NEVER: Moment = Moment(u64::MAX);

/// By when a run's command must have ended.
#[derive(Debug)]
pub(crate) struct Limit(pub(crate) File);

impl Limit {
    pub(crate) fn create(deadline: Timestamp) -> io::Result<Self> {
        let limit = Self(File::from(rustix::fs::memfd_create(FILE, MemfdFlags::CLOEXEC)?));
        limit.put(KILL, NEVER)?;
        limit.put(DEADLINE, deadline.into())?;
        Ok(limit)
    }

    /// The lease was renewed.
    pub(crate) fn renewed(&self, deadline: Timestamp) {
        // A file in memory that has its size already: writing cannot fail, and an older deadline is the safe one.
        let _ = self.put(DEADLINE, deadline.into());
    }

    /// The group is killed at this moment.
    pub(crate) fn ending(&self, kill: Timestamp) {
        let _ = self.put(KILL, kill.into());
    }

    /// The lock is given back, and what still runs may go on without it.
    pub(crate) fn lift(&self) {
        let _ = self.put(DEADLINE, NEVER);
    }

    /// Whether the command of a run inside this one may still run.
    pub(crate) fn has_inner(&self) -> bool {
        match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => flock(&self.0, FlockOperation::Unlock).is_err(),
            Err(error) => error == rustix::io::Errno::WOULDBLOCK,
        }
    }

    fn put(&self, at: u64, Moment(value): Moment) -> io::Result<()> {
        self.0.write_all_at(&value.to_ne_bytes(), at)
    }

    /// The earlier of the two moments.
    fn get(&self) -> Option<Timestamp> {
        let mut last = None;
        loop {
            let mut both = [[0; 8]; 2];
            self.0.read_exact_at(both.as_flattened_mut(), DEADLINE).ok()?;
            // A value may be half written while it is read.
            if last.replace(both) == Some(both) {
                let [deadline, kill] = both.map(u64::from_ne_bytes);
                return Some(Moment(deadline.min(kill)).into());
            }
        }
    }
}

/// The runs around this one.
#[derive(Debug, Default)]
pub(crate) struct Outer {
    limits: Vec<Limit>,
    /// The deadman of the innermost of them.
    deadman: Option<OwnedFd>,
}

impl Outer {
    /// Those that the environment names. The next outer one waits from now on until this process has ended.
    pub(crate) fn join() -> Self {
        let text = env::var(VARIABLE).unwrap_or_default();
        let named: Vec<Named> = text.split(' ').filter_map(Named::parse).collect();
        let limits: Vec<Limit> = named.iter().filter_map(Named::open).collect();
        let next = named.last().and_then(|last| Pid::from_raw(last.deadman));
        if let Some(limit) = limits.last() {
            // Held by others for an instant at most.
            let _ = flock(&limit.0, FlockOperation::LockShared);
        }
        let deadman = next.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { limits, deadman }
    }

    /// The earliest of their deadlines.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        self.limits.iter().filter_map(Limit::get).min()
    }

    /// Whether the deadman around us has ended: then its group is being killed, and its lock given back.
    pub(crate) fn unguarded(&self) -> bool {
        let Some(deadman) = &self.deadman else { return false };
        let mut polled = [PollFd::new(deadman, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// Whether this process is in the group of the run around it. One that has left it is neither waited for nor ended.
pub(crate) fn is_inside() -> bool {
    let text = env::var(VARIABLE).unwrap_or_default();
    let last = text.rsplit(' ').next().and_then(Named::parse);
    last.is_some_and(|last| Pid::from_raw(last.group) == group::own())
}

/// The process id of the outermost run around this process.
pub(crate) fn outermost() -> Option<i32> {
    let text = env::var(VARIABLE).ok()?;
    let first = text.split(' ').find_map(Named::parse)?;
    first.open()?;
    let run = Process::of(first.deadman)?.parent;
    // 1: the run is gone, and its deadman about to be.
    (run > 1).then_some(run)
}

/// What [`VARIABLE`] is for a command in `group` under this `deadman`, which has the file at this descriptor.
pub(crate) fn variable(deadman: i32, descriptor: i32, group: i32) -> String {
    let own = format!("{deadman}:{descriptor}:{group}");
    match env::var(VARIABLE) {
        Ok(outer) if !outer.is_empty() => format!("{outer} {own}"),
        _ => own,
    }
}

/// A file as [`VARIABLE`] names it.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    deadman: i32,
    descriptor: i32,
    group: i32,
}

impl Named {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(|number| number.parse::<i32>().ok().filter(|n| *n > 0));
        let (deadman, descriptor, group) = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { deadman, descriptor, group })
    }

    fn open(&self) -> Option<Limit> {
        let file = File::open(format!("/proc/{}/fd/{}", self.deadman, self.descriptor)).ok()?;
        // The number may be another process's by now.
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        (path.to_str()? == format!("/memfd:{FILE} (deleted)")).then_some(Limit(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_secs(seconds))
    }

    /// As another process would open it.
    fn opened(limit: &Limit) -> Limit {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Named { deadman: pid, descriptor: limit.0.as_raw_fd(), group: pid }.open().unwrap()
    }

    #[test]
    fn the_earlier_moment_counts_until_it_is_lifted() {
        let limit = Limit::create(at(100)).unwrap();
        let inner = opened(&limit);
        assert_eq!(inner.get(), Some(at(100)));
        limit.renewed(at(110));
        assert_eq!(inner.get(), Some(at(110)));
        limit.ending(at(105));
        limit.renewed(at(120));
        assert_eq!(inner.get(), Some(at(105)));
        let other = Limit::create(at(100)).unwrap();
        let inner = opened(&other);
        other.lift();
        assert!(inner.get() > Some(at(1_000_000_000)));
    }

    #[test]
    fn who_runs_inside_is_seen() {
        let limit = Limit::create(at(100)).unwrap();
        assert!(!limit.has_inner());
        let inner = opened(&limit);
        flock(&inner.0, FlockOperation::LockShared).unwrap();
        assert!(limit.has_inner());
        drop(inner);
        assert!(!limit.has_inner());
    }

    #[test]
    fn only_our_files_are_opened() {
        assert_eq!(Named::parse("4:5:6"), Some(Named { deadman: 4, descriptor: 5, group: 6 }));
        for bad in ["", "4", "4:5", "4:5:6:7", "4:-5:6", "4:5:x", "0:5:6"] {
            assert_eq!(Named::parse(bad), None, "{bad}");
        }
        let other = File::open("/dev/null").unwrap();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert!(Named { deadman: pid, descriptor: other.as_raw_fd(), group: pid }.open().is_none());
    }
}
