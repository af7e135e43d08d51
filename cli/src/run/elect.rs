//! `onelock elect`: one instance of a command in the whole fleet, one term after the other.

use std::time::{Duration, Instant};

use clap::Parser;
use onelock::{ErrorKind, Lock, Locks, Mode};
use rustix::process::Signal;

use super::bounds::Bounds;
use super::signals::Signals;
use super::supervise::End;
use super::take::{self, Taken, Wait};
use super::term::Term;
use super::work::{Ready, Work};
use super::{ended, finish, interrupted};
use crate::deadman::group;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{human, say};
use crate::store;

const EXIT_CODES: &str = "\
Exit codes:
  0    ended by TERM or HUP; the command has ended and the lock was given back
  128+N  ended by INT or QUIT (N is 2 or 3), and the same is true
  64   the command line, a name, a time or the store's URL cannot be used
  69   the store refused
  70   onelock itself failed";

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    work: Work,
    /// How long to pause after the command has ended; each time twice as long, until it has run for --max-pause.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pause: Duration,
    /// The longest pause.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = crate::args::period)]
    max_pause: Duration,
}

pub(crate) async fn elect(url: Option<String>, args: ElectArgs) -> Outcome {
    let ready = Ready::new(url, &args.work, Bounds::default())?;
    // Nobody sits at the keyboard of a service.
    let null = std::fs::File::open("/dev/null").map_err(Failure::system("/dev/null cannot be opened"))?;
    rustix::stdio::dup2_stdin(null).map_err(Failure::system("standard input cannot be replaced"))?;
    let mut signals = Signals::listen(true)?;
    let locks = match take::connect(&ready.url, Wait::Forever, &mut signals).await? {
        Ok(locks) => locks,
        Err(signal) => return Ok(ended(end_by(signal, &signals))),
    };
    let lock = ready.lock(&locks, Mode::Exclusive)?;
    let end = stand(&locks, &lock, &args, &mut signals).await.map(|signal| end_by(signal, &signals));
    finish(&locks, end, store::CLOSE, signals).await
}

/// The end that a signal asks for.
fn end_by(signal: Signal, signals: &Signals) -> End {
    match signal {
        Signal::INT | Signal::QUIT => interrupted(signal, signals),
        _ => End::new(Exit::OK),
    }
}

/// Stands, leads, and stands again, until a signal comes.
async fn stand(
    locks: &Locks,
    lock: &Lock,
    args: &ElectArgs,
    signals: &mut Signals,
) -> Result<Signal, Failure> {
    let mut pause = args.pause;
    loop {
        // The deadmen of the terms before, and what the commands left behind: all of it is our child by now.
        group::reap(None);
        let guard = match take::take(locks, lock, Wait::Forever, signals).await {
            Ok(Taken::Held(guard)) => Some(guard),
            Ok(Taken::Busy) => None,
            Ok(Taken::Interrupted(signal)) => return Ok(signal),
            // Somebody wants another one to lead next.
            Err(Failure::Lock(error)) if error.kind() == ErrorKind::Evicted => {
                say(format_args!("{error}"));
                None
            }
            Err(failure) => return Err(failure),
        };
        let begun = Instant::now();
        if let Some(guard) = guard {
            let (work, bounds) = (&args.work, Bounds::default());
            let mut term = Term { locks, signals, work, bounds, leader_only: false };
            match term.under(guard, begun).await {
                Ok(End { stopped_by: Some(signal), .. }) => return Ok(signal),
                Ok(End { lost: true, .. }) => {}
                Ok(End { exit, .. }) => say(format_args!("the command has ended with exit code {}", exit.0)),
                Err(Failure::Left) => return Err(Failure::Left),
                Err(failure) => drop(failure.report()),
            }
        }
        if begun.elapsed() >= args.max_pause {
            pause = args.pause;
        }
        say(format_args!("standing for `{}` again in {}", lock.name(), human(pause)));
        tokio::select! {
            biased;
            signal = signals.next_end() => return Ok(signal),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).max(Duration::from_millis(1)).min(args.max_pause).max(args.pause);
    }
}
