//! `onelock run`: take the lock, have the command run under it, give the lock back.
//!
//! | module | what it owns |
//! |---|---|
//! | `elect` | `elect`: one term after the other |
//! | `wait` | `wait`: take the lock and give it back |
//! | `bounds` | how long the lock is held at least and at most |
//! | `work` | what the command line says of a command, checked before any I/O |
//! | `take` | waiting for the store and the lock |
//! | `term` | one hold of the lock, with the command under it |
//! | `supervise` | while the command runs |

mod bounds;
pub(crate) mod elect;
mod signals;
mod supervise;
mod take;
mod term;
mod terminal;
pub(crate) mod wait;
mod ward;
mod work;

use std::time::{Duration, Instant};

use clap::Parser;
use onelock::{Lock, Locks, Mode};
use rustix::process::Signal;

use crate::death::Death;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::say;
use crate::store;
use bounds::Bounds;
use signals::Signals;
use supervise::End;
use take::{Taken, Wait};
use term::Term;
use work::{Ready, Work};

const EXIT_CODES: &str = "\
Exit codes:
  the command's own, or 128+N when signal N killed it
  64   the command line, a name, a time or the store's URL cannot be used
  69   the store cannot be reached, or refused
  70   onelock itself failed
  75   busy: --no-wait, or --wait is over (another with --conflict-exit-code)
  76   the lock was lost; the command was ended if it still ran
  126  the command cannot be executed
  127  the command was not found";

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) work: Work,
    /// Wait at most this long, for the lock and for a store that is away.
    #[arg(short, long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    /// Do not wait at all, neither for the lock nor for the store.
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,
    /// Share the lock with others that say so.
    #[arg(short, long, conflicts_with = "permits")]
    shared: bool,
    /// Hold it together with up to N - 1 others; where they say different numbers the smallest counts.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    permits: Option<u32>,
    /// How many of the permits to take: 1 to N. Holders are let in while their weights fit into the smallest number.
    #[arg(long, value_name = "W", requires = "permits")]
    weight: Option<u32>,
    #[command(flatten)]
    bounds: Bounds,
    /// The exit code when the lock is busy.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::BUSY.0)]
    conflict_exit_code: u8,
    /// Give the lock back as soon as the command itself ends, even if processes that it started in its group run on
    /// without it.
    #[arg(long)]
    leader_only: bool,
}

pub(crate) async fn run(url: Option<String>, args: RunArgs) -> Outcome {
    let mode = match (args.shared, args.permits) {
        (true, _) => Mode::Shared,
        (false, Some(limit)) => Mode::permit(limit)?,
        (false, None) => Mode::Exclusive,
    };
    let mode = args.weight.map_or(Ok(mode), |weight| mode.weighing(weight))?;
    let ready = Ready::new(url, &args.work, args.bounds)?;
    let begun = Instant::now();
    let wait = Wait::new(begun, args.wait, args.no_wait);
    let mut signals = Signals::listen(false)?;
    let locks = match take::connect(&ready.url, wait, &mut signals).await? {
        Ok(locks) => locks,
        Err(signal) => return Ok(ended(interrupted(signal, &signals))),
    };
    let lock = ready.lock(&locks, mode)?;
    let (end, patience) = match take::take(&locks, &lock, wait, &mut signals).await {
        Ok(Taken::Held(guard)) => {
            let (work, bounds, leader_only) = (&args.work, args.bounds, args.leader_only);
            let mut term = Term { locks: &locks, signals: &mut signals, work, bounds, leader_only };
            let end = term.under(guard, begun).await;
            // Told to end while the store hangs: the lease gives the lock back.
            let told = matches!(&end, Ok(End { stopped_by: Some(_), .. }));
            (end, if told { Duration::ZERO } else { store::CLOSE })
        }
        Ok(Taken::Busy) => (Ok(busy(&locks, &lock, args.conflict_exit_code).await), take::LAST_WORD),
        Ok(Taken::Interrupted(signal)) => (Ok(interrupted(signal, &signals)), take::LAST_WORD),
        Err(failure) => (Err(failure), take::LAST_WORD),
    };
    finish(&locks, end, patience, signals).await
}

/// Somebody else has it.
async fn busy(locks: &Locks, lock: &Lock, code: u8) -> End {
    // Nothing where the store does not say it soon.
    let line = tokio::time::timeout(take::LAST_WORD, locks.inspect(lock.name())).await;
    let holders = line.ok().and_then(Result::ok).as_ref().map(take::describe).unwrap_or_default();
    say(format_args!("`{}` is busy{holders}", lock.name()));
    End::new(Exit(code))
}

/// Ended by a signal while nothing was held.
fn interrupted(signal: Signal, signals: &Signals) -> End {
    let death = signals.to_die_of(signal.as_raw()).map(|signal| Death { signal, with_job: false });
    End { death, ..End::new(Exit::killed_by(signal.as_raw())) }
}

/// Gives the store `patience` for what is owed, and ends as `end` says.
async fn finish(
    locks: &Locks,
    end: Result<End, Failure>,
    patience: Duration,
    mut signals: Signals,
) -> Outcome {
    // Closing would give the lock back.
    if !matches!(end, Err(Failure::Left)) {
        tokio::select! {
            biased;
            // What is not given back by then ends with its lease: at most a place in the line where nothing was held.
            _ = locks.close(patience) => {}
            // What is left to do is tidying up; a lease does it as well.
            _ = signals.next_end() => {}
        }
    }
    Ok(ended(end?))
}

/// Dies of the signal that `end` says, where that is possible.
fn ended(end: End) -> Exit {
    if let Some(death) = end.death {
        death.die();
    }
    end.exit
}
