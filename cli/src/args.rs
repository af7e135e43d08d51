//! The command line.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Parser, Subcommand};
use clap_complete::Shell;

#[cfg(feature = "bench")]
use crate::bench::BenchArgs;
#[cfg(feature = "check")]
use crate::check::CheckArgs;
use crate::manual::ManArgs;
use crate::operate::evict::EvictArgs;
use crate::operate::gates::GatesArgs;
use crate::run::RunArgs;
use crate::run::elect::ElectArgs;
use crate::run::wait::WaitArgs;
use crate::show::deadlocks::DeadlocksArgs;
use crate::show::leader::LeaderArgs;
use crate::show::list::ListArgs;
use crate::show::ping::PingArgs;
use crate::show::status::StatusArgs;
use crate::show::stores::StoresArgs;
use crate::show::top::TopArgs;
use crate::show::watch::WatchArgs;

/// A distributed lock around any command, on whichever store you run.
#[derive(Debug, Parser)]
#[command(name = "onelock", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = crate::absent::help())]
pub(crate) struct Args {
    /// The store's URL, such as redis://127.0.0.1:6379. Without it: an SQLite file in your state folder, shared by your
    /// processes on this host. A URL with a password belongs in the environment, as ONELOCK_STORE: `ps` does not show it there.
    #[arg(long, global = true, value_name = "URL", value_parser = store)]
    #[arg(env = "ONELOCK_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs.
    ///
    /// Waits for the lock, runs the command with ONELOCK_NAME and ONELOCK_TOKEN in its environment, keeps the lease
    /// renewed, forwards signals to the command's process group, and gives the lock back when the last process of that
    /// group has ended, or leaves it to the store until --at-least is over. If the lock is being lost, the group is
    /// ended before the lease can run out: TERM, and KILL after the grace. That holds even when onelock itself is
    /// stopped or killed.
    Run(RunArgs),
    /// Wait until a lock is free.
    ///
    /// Waits in the line of the lock for all that are ahead, as `run` does, takes it and gives it back at once. For
    /// that moment the lock is busy for others. What joins the line later is not waited for, so the wait comes to an
    /// end.
    Wait(WaitArgs),
    /// Keep one instance of a command running in the whole fleet.
    ///
    /// Say the same on every host: all stand for election, and the one that leads runs the command, as `run` does: with
    /// ONELOCK_NAME and ONELOCK_TOKEN in its environment, and ended before the lease can run out, even when onelock
    /// itself is stopped or killed. When the command ends, whatever its exit code, the lead is handed on, and this
    /// candidate stands again after a pause, at the end of the line. The command's standard input is empty.
    ///
    /// TERM, HUP, INT and QUIT end the command (TERM, and KILL after the grace), hand the lead on, and end onelock; USR1
    /// and USR2 go to the command. A store that is away is waited for.
    Elect(ElectArgs),
    /// Show who leads an election. Exit code 0 when somebody does, 1 when nobody does.
    ///
    /// The candidates of an election wait in the line of its name: `status` shows them.
    Leader(LeaderArgs),
    /// Show who holds a lock and who waits. Exit code 0 when it is held, 1 when it is free.
    Status(StatusArgs),
    /// Print the changes of a line as they come.
    ///
    /// One a line, until it is ended: first who holds and who waits; then who `joined` the line, `took` the lock, `left`
    /// the line without it, and whose hold `ended` (given back, evicted or expired: the store does not say which), and
    /// when the name is `free`. What comes and goes between two looks is not seen.
    Watch(WatchArgs),
    /// List the names in use.
    List(ListArgs),
    /// Show names, holders and waiters, live.
    ///
    /// AGE is how long ago the first holder joined the line, OLDEST the same of the first waiter. Keys: arrows, j, k,
    /// PgUp, PgDn, Home, End; s sorts by another column; / filters by name or holder; e evicts the selected holder,
    /// after a y; q quits. Each look asks for every name that is shown: for more than --names of them, those with the
    /// most waiters.
    Top(TopArgs),
    /// Find clients that wait for each other. Exit code 0 when there are none, 1 when there are.
    ///
    /// Clients are told apart by their notes: by host and process id, which the library and this program write there by
    /// themselves, else by the whole note. A run inside a run counts as its outermost run. All lines with waiters are
    /// looked at twice, and only what stands in both counts, so each circle was there at one moment. What it cannot see:
    /// who waits in other stores or for anything else than a lock; whether one task of a process waits and another one
    /// would give the lock back; clients without a note. Clients with the same note count as one.
    Deadlocks(DeadlocksArgs),
    /// Take a lock, or a place in its line, away from whoever has it. Exit code 1 when nobody has that token.
    Evict(EvictArgs),
    /// Show the gates of a quorum's members, or open them by your word. Exit code 0 when all are open, 1 when not.
    ///
    /// A member whose gate is shut has no vote: it was started anew and may have forgotten what it granted. The others
    /// open it after the quarantine, by themselves, while a majority of them is open. Where it is not (the very first
    /// start, or too many restarted at once), only a person can know that nothing is held: then --open.
    Gates(GatesArgs),
    /// Reach the store, read and write it, and say how long that took.
    ///
    /// Reads a line, takes a lock of a random name and gives it back. Exit code 69 when the store cannot be reached,
    /// refuses, or takes no writes.
    Ping(PingArgs),
    /// List the stores of this build and how to reach them.
    Stores(StoresArgs),
    /// Run the shared suite against a store, and report what held. Exit code 1 when a promise was broken.
    ///
    /// All names it uses begin with `check-`, so nobody else's locks are touched; but it works the server hard, and its
    /// clients stop and kill themselves: use a server that can bear that. What needs a server in the suite's own hands
    /// is not checked, and the report says so.
    #[cfg(feature = "check")]
    Check(CheckArgs),
    /// Measure stores side by side.
    ///
    /// The same workloads, one subject after the other in every round, so that whatever else the machine does hits all
    /// alike. Names begin with `bench-`, so nobody else's locks are touched; but it works a server hard. Ctrl-C ends it
    /// after the present sample and keeps what is done; a second one ends it at once. Figures of two runs compare only
    /// when both are of one machine.
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    /// Print the manual's pages.
    Man(ManArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// An empty URL is a variable that was not set where it was meant to be, and not a wish for the default store.
fn store(url: &str) -> Result<String, String> {
    let given = (!url.is_empty()).then(|| url.into());
    given.ok_or_else(|| "it is empty; unset ONELOCK_STORE for the default store".into())
}

/// Why a store's URL is refused in place of anything else.
pub(crate) const STRAY_URL: &str = "a store's URL stands where none is expected: put it behind --store";

/// A lock's name, or how names begin; what they may be, the library says. A store's URL in its place is a mistake: the
/// default store would be asked, and would show the URL's password as a name.
#[derive(Clone)]
pub(crate) struct Name;

impl TypedValueParser for Name {
    type Value = String;

    fn parse_ref(&self, cmd: &clap::Command, arg: Option<&Arg>, text: &OsStr) -> Result<String, clap::Error> {
        let text = StringValueParser::new().parse_ref(cmd, arg, text)?;
        let is_url = |scheme: &&str| text.to_ascii_lowercase().starts_with(&format!("{scheme}://"));
        if onelock::families().iter().flat_map(|family| family.schemes).any(is_url) {
            return Err(clap::Error::raw(ErrorKind::ValueValidation, format!("{STRAY_URL}\n")).with_cmd(cmd));
        }
        Ok(text)
    }
}

/// How often a store is looked at.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(50);
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if period < LEAST { Err("it is shorter than 50ms".into()) } else { Ok(period) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let args = Args::try_parse_from(["onelock", "run", "a", "--ttl", "2s", "--", "ls", "--ttl"]).unwrap();
        let Command::Run(run) = args.command else { panic!("not run") };
        assert_eq!(run.work.command, ["ls", "--ttl"]);
        assert_eq!(run.work.ttl, Some(Duration::from_secs(2)));
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        for bad in [
            "--store= run a -- ls",
            "run a",
            "run a --",
            "run a ls",
            "run a --wait 1s --no-wait -- ls",
            "run a --shared --permits 2 -- ls",
            "run a --permits 0 -- ls",
            "run a --ttl soon -- ls",
            "run a -E 256 -- ls",
            "list redis://h",
            "status quorum://?members=a",
            "run postgresql+session://h/d -- ls",
            "evict a",
            "evict a --token 0",
            "evict a --token -1",
            "gates --floor 7",
            "gates --open --floor -1",
            "status",
            "wait a --timeout 1s --no-wait",
            "elect a",
            "elect a --max-pause 0s -- ls",
            "elect a --shared -- ls",
            "top --sort size",
            "top --json",
            "man run --dir /tmp",
            "watch a --interval 1ms",
            "leader",
            "ping --timeout soon",
            "frob",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        #[cfg(feature = "bench")]
        for bad in ["bench --all redis://h", "bench --rounds 0", "bench --from old.json --quick"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_for_a_name_is_refused_and_not_shown() {
        let refused = Args::try_parse_from(["onelock", "status", "redis://u:never-printed@h"]).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("--store") && !text.contains("never-printed"), "{text}");
        assert!(Args::try_parse_from(["onelock", "status", "https://example.org/a"]).is_ok());
    }

    fn parse(words: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("onelock").chain(words.split(' ')))
    }
}
