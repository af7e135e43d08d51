//! What the command line says of a command and of the lock around it, checked before anything is asked of the store.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use nix::unistd::{Uid, User};
use onelock::{Lock, LockName, Locks, Mode, Note};

use super::bounds::Bounds;
use crate::args::Name;
use crate::deadman::{group, limit};
use crate::exit::Failure;
use crate::output::say;
use crate::store;

/// What `run` and `elect` share.
#[derive(Debug, clap::Args)]
pub(crate) struct Work {
    /// The name of the lock: 1 to 255 bytes, no control characters.
    #[arg(value_parser = Name)]
    pub(crate) name: String,
    /// The lease: how soon others get the lock after this machine died. The URL's, or 30s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// How long after TERM comes KILL when the lock is lost; at most a third of the lease.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    /// The label that `status` shows. The URL's, or user, host, process id and the command.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Say on stderr when the lock is taken, with its token, and given back.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The command and its arguments, behind `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Work that can be begun.
pub(super) struct Ready<'a> {
    pub(super) url: String,
    work: &'a Work,
    bounds: Bounds,
    note: Note,
}

impl<'a> Ready<'a> {
    pub(super) fn new(url: Option<String>, work: &'a Work, bounds: Bounds) -> Result<Self, Failure> {
        LockName::new(&work.name)?;
        if !group::proc_is_ours() {
            return Err(Failure::other(
                "/proc does not show the processes of this PID namespace; mount it (unshare --mount-proc)",
            ));
        }
        let url = store::url(url)?;
        let set = bounds.check(&url, work)?.note;
        let note = note(work.note.as_deref(), set, work.command.first().map(OsString::as_os_str))?;
        Ok(Self { url, work, bounds, note })
    }

    /// The lock, on its store.
    pub(super) fn lock(&self, locks: &Locks, mode: Mode) -> Result<Lock, Failure> {
        if self.url.contains("memory://") {
            say(format_args!("memory:// is in this process alone: nobody else sees what it locks"));
        }
        let lock = locks.lock(&self.work.name, mode)?.note(self.note.as_str())?;
        self.bounds.around(match self.work.ttl {
            Some(ttl) => lock.ttl(ttl)?,
            None => lock,
        })
    }
}

/// The label: what the user said, what the URL has set, or who runs what where.
pub(super) fn note(said: Option<&str>, set: Option<Note>, program: Option<&OsStr>) -> Result<Note, Failure> {
    if let Some(note) = said.map(Note::new).transpose()?.or(set) {
        return Ok(note);
    }
    let named = ["USER", "LOGNAME"].iter().filter_map(|key| std::env::var(key).ok()).find(|u| !u.is_empty());
    let user = named.or_else(|| Some(User::from_uid(Uid::current()).ok()??.name));
    let user = user.unwrap_or_else(|| Uid::current().to_string());
    let uname = rustix::system::uname();
    let program = program.map(Path::new).and_then(Path::file_name).unwrap_or(OsStr::new("?"));
    // A run inside another belongs to it: `deadlocks` needs to know.
    let outermost = limit::outermost().map(|run| format!("/{run}")).unwrap_or_default();
    let text = format!(
        "{user}@{}:{}{outermost} {}",
        uname.nodename().to_string_lossy(),
        std::process::id(),
        program.to_string_lossy()
    );
    Ok(Note::new(fitting(&text))?)
}

/// As much of `text` as a note takes.
fn fitting(text: &str) -> String {
    let fits = text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= Note::MAX_BYTES);
    fits.map(|(_, c)| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_always_fits() {
        assert_eq!(fitting("a\u{1b}b"), "a?b");
        let long = fitting(&"ü".repeat(400));
        assert!(Note::new(&long).is_ok() && long.len() == 512);
    }
}
