//! The last step before the command: this program once more, which binds itself to its parent and becomes the command.
//!
//! A parent-death signal can only be set by the process itself and survives `exec`, so this needs no unsafe code
//! between fork and exec.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal};

use super::limit;
use crate::exit::Exit;
use crate::output::say;

/// The word by which this program gives itself this role.
pub(crate) const ROLE: &str = "__command";

/// What the deadman passes before the command's own words: itself, where it has the file of its [`Limit`], and whether
/// the command begins in the foreground.
///
/// [`Limit`]: super::limit::Limit
pub(super) fn words(parent: Pid, limit: i32, foreground: bool) -> [OsString; 4] {
    let foreground = if foreground { "foreground" } else { "-" };
    [ROLE.into(), parent.as_raw_nonzero().to_string().into(), limit.to_string().into(), foreground.into()]
}

/// Becomes the command; returns only when it cannot.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    let number = |word: &OsString| word.to_str().and_then(|text| text.parse::<i32>().ok());
    let words = match words {
        [parent, descriptor, foreground, program, rest @ ..] => {
            number(parent).zip(number(descriptor)).map(|numbers| (numbers, foreground, program, rest))
        }
        _ => None,
    };
    let Some(((parent, descriptor), foreground, program, rest)) = words else {
        say(format_args!("{ROLE} is for onelock itself"));
        return Exit::USAGE.into();
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        say(format_args!("the command cannot be bound to its guard: {error}"));
        return Exit::INTERNAL.into();
    }
    // A parent that died before the line above sends no signal any more.
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Exit::INTERNAL.into();
    }
    if foreground == "foreground" {
        take_terminal();
    }
    // The deadman blocks every signal; the command starts with none blocked.
    if let Err(error) = SigSet::empty().thread_set_mask() {
        say(format_args!("signals cannot be unblocked: {error}"));
        return Exit::INTERNAL.into();
    }
    // The deadman made this process the leader of the group.
    let group = rustix::process::getpid().as_raw_nonzero().get();
    let outer = limit::variable(parent, descriptor, group);
    let error = Command::new(program).args(rest).env(limit::VARIABLE, outer).exec();
    say(format_args!("{}: {}", program.display(), words_for(&error)));
    if error.kind() == io::ErrorKind::NotFound { Exit::NOT_FOUND.into() } else { Exit::CANNOT_EXECUTE.into() }
}

/// Becomes the foreground of the terminal before the command can read from it. Signals are still blocked here, so the
/// terminal does not stop us for asking. Without it the command runs in the background, as after `&`.
fn take_terminal() {
    if let Ok(tty) = std::fs::File::open("/dev/tty") {
        let _ = rustix::termios::tcsetpgrp(&tty, rustix::process::getpid());
    }
}

fn words_for(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "command not found".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}
