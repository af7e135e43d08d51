//! `onelock wait`: until a lock is free, as `flock FILE true` in a script.

use std::time::{Duration, Instant};

use clap::Parser;
use onelock::{ErrorKind, LockName, Mode};

use super::signals::Signals;
use super::supervise::End;
use super::take::{self, Taken, Wait};
use super::{busy, ended, finish, interrupted, work};
use crate::args::Name;
use crate::exit::{Exit, Outcome};
use crate::store;

const EXIT_CODES: &str = "\
Exit codes:
  0    it is free
  64   the command line, a name, a time or the store's URL cannot be used
  69   the store cannot be reached, or refused
  75   busy: --no-wait, or --timeout is over (another with --conflict-exit-code)
  76   the place in the line was evicted
  128+N  signal N ended the wait";

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct WaitArgs {
    /// The name of the lock.
    #[arg(value_parser = Name)]
    name: String,
    /// Wait at most this long, for the lock and for a store that is away.
    #[arg(short, long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Do not wait at all: only say, by the exit code, whether it is free.
    #[arg(short, long, conflicts_with = "timeout")]
    no_wait: bool,
    /// Wait only for those that do not share it.
    #[arg(short, long)]
    shared: bool,
    /// The exit code when the lock is busy.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::BUSY.0)]
    conflict_exit_code: u8,
}

pub(crate) async fn wait(url: Option<String>, args: WaitArgs) -> Outcome {
    LockName::new(&args.name)?;
    let url = store::url(url)?;
    let wait = Wait::new(Instant::now(), args.timeout, args.no_wait);
    let mut signals = Signals::listen(false)?;
    let locks = match take::connect(&url, wait, &mut signals).await? {
        Ok(locks) => locks,
        Err(signal) => return Ok(ended(interrupted(signal, &signals))),
    };
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let note = work::note(None, locks.settings().note.clone(), Some("wait".as_ref()))?;
    let lock = locks.lock(&args.name, mode)?.note(note.as_str())?;
    let end = match take::take(&locks, &lock, wait, &mut signals).await {
        Ok(Taken::Held(guard)) => tokio::select! {
            released = guard.release() => match released {
                // It was free, whatever became of it since.
                Err(error) if error.kind() != ErrorKind::Lost && !error.is_retryable() => Err(error.into()),
                _ => Ok(End::new(Exit::OK)),
            },
            _ = signals.next_end() => Ok(End::new(Exit::OK)),
        },
        Ok(Taken::Busy) => Ok(busy(&locks, &lock, args.conflict_exit_code).await),
        Ok(Taken::Interrupted(signal)) => Ok(interrupted(signal, &signals)),
        Err(failure) => Err(failure),
    };
    finish(&locks, end, take::LAST_WORD, signals).await
}
