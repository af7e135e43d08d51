//! The command's process group: who is in it, and signals to all of it.
//!
//! A group's number can be given to another group once nothing of the group is left, not even a leader that nobody
//! has waited for. Whoever signals a group here keeps its leader unreaped for as long.

use std::fs;
use std::io;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// A process group whose leader is not reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Pid);

impl Group {
    pub(crate) fn new(leader: Pid) -> Self {
        Self(leader)
    }

    pub(crate) fn from_raw(leader: i32) -> Option<Self> {
        // 1 and below would mean "everybody" to kill(2).
        (leader > 1).then(|| Pid::from_raw(leader).map(Self)).flatten()
    }

    pub(crate) fn leader(self) -> Pid {
        self.0
    }

    /// Sends `signal` to every process of the group. One that is gone is not an error.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<()> {
        match rustix::process::kill_process_group(self.0, signal) {
            Err(Errno::SRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// TERM, and CONT so that a stopped process gets it.
    pub(crate) fn terminate(self) {
        // A group that holds only processes of another user cannot be helped; KILL would fail as well.
        let _ = self.signal(Signal::TERM);
        let _ = self.signal(Signal::CONT);
    }

    /// KILL.
    pub(crate) fn kill(self) {
        let _ = self.signal(Signal::KILL);
    }

    /// Whether any process of the group runs or could run. An unreaped one does not.
    ///
    /// Where the process table cannot be read the group counts as alive: the lock is then kept rather than freed early.
    pub(crate) fn alive(self) -> bool {
        let group = self.0.as_raw_nonzero().get();
        processes().map_or(true, |mut all| all.any(|process| process.group == group && !process.dead()))
    }
}

/// Reaps what ended among the children of this process, apart from `keep`.
pub(crate) fn reap_others(keep: Pid) {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(all) = processes() else { return };
    for process in all.filter(|p| p.parent == me && p.dead() && p.pid != keep.as_raw_nonzero().get()) {
        if let Some(pid) = Pid::from_raw(process.pid) {
            let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// A process as the process table shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) threads: u32,
}

impl Process {
    /// This one, if it exists.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.parse().ok()
    }

    /// Nothing of it runs: a zombie whose other threads are gone too.
    fn dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

impl FromStr for Process {
    type Err = ();

    /// Reads `/proc/<pid>/stat`. The program's name may hold anything, so it is skipped up to its last bracket.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, rest) = text.split_once(' ').ok_or(())?;
        let (_, rest) = rest.rsplit_once(") ").ok_or(())?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|f| f.parse::<i32>().ok()).ok_or(());
        Ok(Self {
            pid: pid.parse().map_err(|_| ())?,
            state: fields.first().and_then(|f| f.chars().next()).ok_or(())?,
            parent: number(1)?,
            group: number(2)?,
            threads: number(17)?.unsigned_abs(),
        })
    }
}

fn processes() -> io::Result<impl Iterator<Item = Process>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Process::of(name.to_str()?.parse().ok()?)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let text = "42 (a) Z (b) S 7 9 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 100 ";
        let process: Process = text.parse().unwrap();
        assert_eq!(process, Process { pid: 42, state: 'S', parent: 7, group: 9, threads: 3 });
        assert!("42 (x".parse::<Process>().is_err());
    }

    #[test]
    fn a_zombie_is_dead_unless_its_threads_run_on() {
        let zombie = Process { pid: 2, state: 'Z', parent: 1, group: 2, threads: 1 };
        assert!(zombie.dead());
        assert!(!Process { threads: 2, ..zombie }.dead());
        assert!(!Process { state: 'T', ..zombie }.dead());
    }

    #[test]
    fn our_own_group_is_alive_and_nobody_is_a_group() {
        assert!(Group::new(rustix::process::getpgrp()).alive());
        for bad in [1, 0, -1] {
            assert_eq!(Group::from_raw(bad), None);
        }
    }
}
