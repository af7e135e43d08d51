//! `onelock run`: take the lock, have the command run under it, give the lock back.

mod signals;
mod supervise;
mod terminal;
mod wait;
mod ward;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::SigSet;
use onelock::{ErrorKind, Guard, Lock, Locks, Mode, Note};

use crate::args::RunArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{human, say};
use crate::store;
use signals::Signals;
use supervise::{Supervisor, Verdict};
use terminal::Terminal;
use wait::{Taken, Wait};
use ward::Ward;

/// How long giving the lock back may take at most; its lease frees it otherwise.
const GIVE_BACK: Duration = Duration::from_secs(10);

pub(crate) async fn run(url: Option<String>, args: RunArgs) -> Outcome {
    let mode = match (args.shared, args.permits) {
        (true, _) => Mode::Shared,
        (false, Some(limit)) => Mode::permit(limit)?,
        (false, None) => Mode::Exclusive,
    };
    onelock::LockName::new(&args.name)?;
    let note = note(&args)?;
    let locks = store::connect(url).await?;
    let outcome = match configured(&locks, &args, mode, &note) {
        Ok(lock) => under(&locks, &lock, &args).await,
        Err(failure) => Err(failure),
    };
    store::close(&locks).await;
    outcome
}

fn configured(locks: &Locks, args: &RunArgs, mode: Mode, note: &Note) -> Result<Lock, Failure> {
    let lock = locks.lock(&args.name, mode)?.note(note.as_str())?;
    Ok(match args.ttl {
        Some(ttl) => lock.ttl(ttl)?,
        None => lock,
    })
}

/// The label: what the user said, or who runs what where.
fn note(args: &RunArgs) -> Result<Note, Failure> {
    if let Some(text) = &args.note {
        return Ok(Note::new(text)?);
    }
    let user =
        ["USER", "LOGNAME"].iter().find_map(|key| std::env::var(key).ok()).filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let uname = rustix::system::uname();
    let program = args.command.first().map(Path::new).and_then(Path::file_name).unwrap_or(OsStr::new("?"));
    let text = format!(
        "{user}@{}:{} {}",
        uname.nodename().to_string_lossy(),
        std::process::id(),
        program.to_string_lossy()
    );
    Ok(Note::new(fitting(&text))?)
}

/// As much of `text` as a note takes.
fn fitting(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if out.len() + c.len_utf8() > Note::MAX_BYTES {
            break;
        }
        out.push(c);
    }
    out
}

async fn under(locks: &Locks, lock: &Lock, args: &RunArgs) -> Outcome {
    let system = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
    let mut signals = Signals::listen().map_err(|error| system(&error))?;
    let wait = match args.wait {
        _ if args.no_wait => Wait::No,
        Some(time) => Wait::For(time),
        None => Wait::Forever,
    };
    let begun = std::time::Instant::now();
    let guard = match wait::take(locks, lock, wait, &mut signals).await? {
        Taken::Held(guard) => guard,
        Taken::Interrupted(signal) => return Ok(Exit::killed_by(signal.as_raw())),
        Taken::Busy => {
            let line = locks.inspect(lock.name()).await.map(|line| wait::describe(&line)).unwrap_or_default();
            say(format_args!("`{}` is busy{line}", lock.name()));
            return Ok(Exit(args.conflict_exit_code));
        }
    };
    // A lock that was waited for begins with what is left of the waiter's lease.
    let ttl = args.ttl.unwrap_or(locks.settings().ttl);
    if guard.remaining() < ttl / 2 {
        guard.extend(ttl).await?;
    }
    if args.verbose {
        let (name, time) = (guard.name(), human(begun.elapsed()));
        let token = token(locks, &guard)?.map_or("none".to_owned(), |token| token.to_string());
        say(format_args!("took `{name}` after {time}, token {token}, lease {}", human(guard.ttl())));
    }
    let verdict = command(locks, &guard, args, &mut signals).await;
    let exit = match &verdict {
        Ok(Verdict { lost: true, .. }) | Err(_) => None,
        Ok(verdict) => Some(verdict.exit),
    };
    match exit {
        Some(exit) => give_back(guard, exit, args.verbose).await,
        None => {
            // Whatever is left of it is given back in the background; closing waits for that.
            drop(guard);
            verdict.map(|verdict| verdict.exit)
        }
    }
}

/// The fencing token, where the store has any.
fn token(locks: &Locks, guard: &Guard) -> Result<Option<onelock::FencingToken>, Failure> {
    Ok(if locks.capabilities().fencing { Some(guard.token()?) } else { None })
}

async fn command(
    locks: &Locks,
    guard: &Guard,
    args: &RunArgs,
    signals: &mut Signals,
) -> Result<Verdict, Failure> {
    // Children start with nothing blocked all the same; see the shim.
    let mut background = SigSet::empty();
    background.add(nix::sys::signal::Signal::SIGTTOU);
    background
        .thread_block()
        .map_err(|error| Failure::System(format!("signals cannot be blocked: {error}")))?;
    let terminal = Terminal::open();
    let mut env = vec![("ONELOCK_NAME", guard.name().to_string())];
    env.extend(token(locks, guard)?.map(|token| ("ONELOCK_TOKEN", token.to_string())));
    let ward = Ward::spawn(&args.command, &env)
        .map_err(|error| Failure::System(format!("the deadman cannot be started: {error}")))?;
    let (terminal, grace, leader_only) = (&terminal, args.grace, args.leader_only);
    Supervisor { locks, guard, ward, signals, terminal, grace, leader_only }.run().await
}

/// Gives the lock back. That it was lost in the last moment of the command counts as lost.
async fn give_back(guard: Guard, exit: Exit, verbose: bool) -> Outcome {
    let (name, ttl) = (guard.name().clone(), human(guard.ttl()));
    match tokio::time::timeout(GIVE_BACK, guard.release()).await {
        Ok(Ok(())) => {
            if verbose {
                say(format_args!("gave `{name}` back"));
            }
            Ok(exit)
        }
        Ok(Err(error)) if error.kind() == ErrorKind::Lost => Err(error.into()),
        Ok(Err(error)) => {
            say(format_args!("`{name}` could not be given back and frees itself within {ttl}: {error}"));
            Ok(exit)
        }
        Err(_) => {
            say(format_args!(
                "`{name}` could not be given back and frees itself within {ttl}: the store does not answer"
            ));
            Ok(exit)
        }
    }
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
