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
    /// `known` keeps the members that were found: the whole process table is read only when all of them have ended.
    /// Where it cannot be read the group counts as alive: the lock is then kept rather than freed early.
    pub(crate) fn alive(self, known: &mut Vec<i32>) -> bool {
        let group = self.0.as_raw_nonzero().get();
        let member = |process: &Process| process.group == group && !process.dead();
        while let Some(last) = known.last() {
            if Process::of(*last).is_some_and(|process| member(&process)) {
                return true;
            }
            known.pop();
        }
        let Ok(all) = processes() else { return true };
        known.extend(all.filter(member).map(|process| process.pid));
        !known.is_empty()
    }
}

/// The process group of this process; `None` where it is that of a process outside the PID namespace.
pub(crate) fn own() -> Option<Pid> {
    // The other crate takes it for granted that there is a number.
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// Whether any other process of this process's own group runs or could run.
pub(crate) fn shared() -> bool {
    let Some(group) = own() else { return true };
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let other = |p: Process| p.group == group.as_raw_nonzero().get() && p.pid != me && !p.dead();
    processes().map_or(true, |mut all| all.any(other))
}

/// Whether `/proc` shows the PID namespace of this process. Another one's numbers would mean other processes.
pub(crate) fn proc_is_ours() -> bool {
    let me = rustix::process::getpid().as_raw_nonzero().to_string();
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == me.as_str())
}

/// Reaps what ended among the children of this process, apart from `keep`.
pub(crate) fn reap(keep: Option<Pid>) {
    for child in children().into_iter().filter_map(Pid::from_raw).filter(|child| Some(*child) != keep) {
        let _ = rustix::process::waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// The children of this thread, which starts all that there are.
fn children() -> Vec<i32> {
    if let Ok(list) = fs::read_to_string("/proc/thread-self/children") {
        return list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    // A kernel without that file.
    let me = rustix::process::getpid().as_raw_nonzero().get();
    processes().map_or_else(|_| Vec::new(), |all| all.filter(|p| p.parent == me).map(|p| p.pid).collect())
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
    fn a_known_member_spares_reading_all_processes() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let mut known = vec![me];
        assert!(Group::new(own().unwrap()).alive(&mut known));
        assert_eq!(known, [me], "the table was read: the other member was found");
        // One that has ended is looked for no more.
        let pid = i32::try_from(other.id()).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        known = vec![pid];
        assert!(Group::new(own().unwrap()).alive(&mut known));
        assert!(known.contains(&me) && !known.contains(&pid));
    }

    #[test]
    fn our_own_group_is_alive_and_nobody_is_a_group() {
        let mut known = Vec::new();
        assert!(Group::new(own().unwrap()).alive(&mut known) && !known.is_empty());
        for bad in [1, 0, -1] {
            assert_eq!(Group::from_raw(bad), None);
        }
    }
}
