//! `onelock run`: take the lock, have the command run under it, give the lock back.

mod signals;
mod supervise;
mod terminal;
mod wait;
mod ward;

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nix::unistd::{Uid, User};
use onelock::{ErrorKind, Guard, Lock, Locks, Mode, Note, Settings, StoreUrl};

use crate::args::RunArgs;
use crate::deadman::group;
use crate::death::Death;
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
    if !group::proc_is_ours() {
        return Err(Failure::System(
            "/proc does not show the processes of this PID namespace; mount it (unshare --mount-proc)".into(),
        ));
    }
    if url.as_deref().is_some_and(|url| url.starts_with("memory:")) {
        say(format_args!("memory:// is in this process alone: nobody else sees this lock"));
    }
    let begun = Instant::now();
    let wait = match args.wait {
        _ if args.no_wait => Wait::No,
        // A time too long for the clock is for ever.
        Some(time) => begun.checked_add(time).map_or(Wait::Forever, Wait::Until),
        None => Wait::Forever,
    };
    let url = store::url(url)?;
    check_times(&url, &args)?;
    let locks = wait::connect(&url, wait).await?;
    let lock = configured(&locks, &args, mode, &note)?;
    let mut signals = Signals::listen()
        .map_err(|error| Failure::System(format!("signals cannot be listened to: {error}")))?;
    let (end, patience) = match wait::take(&locks, &lock, wait, &mut signals).await {
        Ok(Taken::Held(guard)) => (under(&locks, guard, &args, begun, &mut signals).await, store::CLOSE),
        // At most a place in the line is owed, which its lease frees as well.
        Ok(Taken::Busy) => {
            let holders = wait::holders(&locks, &lock).await;
            say(format_args!("`{}` is busy{holders}", lock.name()));
            (Ok(End { exit: Exit(args.conflict_exit_code), death: None }), wait::LAST_WORD)
        }
        Ok(Taken::Interrupted(signal)) => {
            let death = signals.to_die_of(signal.as_raw()).map(|signal| Death { signal, with_job: false });
            (Ok(End { exit: Exit::killed_by(signal.as_raw()), death }), wait::LAST_WORD)
        }
        Err(failure) => (Err(failure), wait::LAST_WORD),
    };
    let (outcome, death) = match end {
        Ok(end) => (Ok(end.exit), end.death),
        Err(failure) => (Err(failure), None),
    };
    tokio::select! {
        biased;
        // What is not given back by then ends with its lease.
        _ = locks.close(patience) => {}
        // What is left to do is tidying up; a lease does it as well.
        _ = signals.next_end() => {}
    }
    if let Some(death) = death {
        death.die();
    }
    outcome
}

/// How a run ended that did not fail.
struct End {
    exit: Exit,
    /// The signal to end by instead, where that is possible.
    death: Option<Death>,
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
    let named = ["USER", "LOGNAME"].iter().filter_map(|key| std::env::var(key).ok()).find(|u| !u.is_empty());
    let user = named.or_else(|| Some(User::from_uid(Uid::current()).ok()??.name));
    let user = user.unwrap_or_else(|| Uid::current().to_string());
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

/// Refuses, before anything is asked of the store, a hold that leaves the command no time.
fn check_times(url: &str, args: &RunArgs) -> Result<(), Failure> {
    let mut url: StoreUrl = url.parse()?;
    let settings = Settings::default().merge_url(&mut url)?;
    // TERM comes that long before the end.
    let grace = args.grace.min(args.ttl.unwrap_or(settings.ttl) / 3);
    match settings.max_hold {
        Some(hold) if hold <= grace => Err(Failure::Usage(format!(
            "max_hold={} leaves the command no time before the grace of {} begins",
            human(hold),
            human(grace)
        ))),
        _ => Ok(()),
    }
}

/// Has the command run under the lock, and gives the lock back.
async fn under(
    locks: &Locks,
    guard: Guard,
    args: &RunArgs,
    begun: Instant,
    signals: &mut Signals,
) -> Result<End, Failure> {
    // A lock that was waited for begins with what is left of the waiter's lease.
    let ttl = args.ttl.unwrap_or(locks.settings().ttl);
    if guard.remaining() < ttl / 2 {
        match guard.extend(ttl).await {
            // Renewals go on; the deadman starts no command that has no time.
            Err(error) if error.is_retryable() => {}
            extended => extended?,
        }
    }
    if args.verbose {
        let (name, time) = (guard.name(), human(begun.elapsed()));
        let token = token(locks, &guard)?.map_or("none".to_owned(), |token| token.to_string());
        let (store, lease) = (&locks.info().address, human(guard.ttl()));
        say(format_args!("took `{name}` after {time}, token {token}, lease {lease}, at {store}"));
    }
    let verdict = command(locks, &guard, args, signals).await;
    match verdict {
        Ok(Verdict { lost: false, exit, death }) => {
            give_back(guard, exit, args.verbose, signals).await.map(|exit| End { exit, death })
        }
        verdict => {
            // Whatever is left of it is given back in the background; closing waits for that.
            drop(guard);
            verdict.map(|verdict| End { exit: verdict.exit, death: None })
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
    let refused = |error: std::io::Error| Failure::System(format!("signals cannot be set up: {error}"));
    // Children start with nothing blocked all the same; see the shim.
    let mut background = SigSet::empty();
    background.add(nix::sys::signal::Signal::SIGTTOU);
    background.thread_block().map_err(|error| refused(error.into()))?;
    signals.hear_terminal().map_err(refused)?;
    let terminal = Terminal::open();
    let mut env = vec![("ONELOCK_NAME", guard.name().to_string())];
    env.extend(token(locks, guard)?.map(|token| ("ONELOCK_TOKEN", token.to_string())));
    let ward = Ward::spawn(&args.command, &env, guard.deadline())
        .map_err(|error| Failure::System(format!("the deadman cannot be started: {error}")))?;
    let (terminal, grace, leader_only) = (&terminal, args.grace, args.leader_only);
    Supervisor { locks, guard, ward, signals, terminal, grace, leader_only }.run().await
}

/// Gives the lock back. That it was lost in the last moment of the command counts as lost.
async fn give_back(guard: Guard, exit: Exit, verbose: bool, signals: &mut Signals) -> Outcome {
    let (name, ttl) = (guard.name().clone(), human(guard.ttl()));
    let unfinished = |why: &dyn std::fmt::Display| {
        say(format_args!("`{name}` could not be given back and frees itself within {ttl}: {why}"));
    };
    tokio::select! {
        biased;
        released = guard.release() => match released {
            Ok(()) if verbose => say(format_args!("gave `{name}` back")),
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => return Err(error.into()),
            Err(error) => unfinished(&error),
        },
        () = tokio::time::sleep(GIVE_BACK) => unfinished(&"the store does not answer"),
        _ = signals.next_end() => unfinished(&"onelock was told to end"),
    }
    Ok(exit)
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
