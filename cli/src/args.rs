//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use onelock::FencingToken;

use crate::bench::BenchArgs;
use crate::check::CheckArgs;

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

/// A distributed lock around any command, on whichever store you run.
#[derive(Debug, Parser)]
#[command(name = "onelock", version, max_term_width = 100, propagate_version = true)]
pub(crate) struct Args {
    /// The store's URL, such as redis://127.0.0.1:6379. Without it: an SQLite file in your state folder, shared by the
    /// processes of this host. A URL with a password belongs in the environment, where `ps` does not show it.
    #[arg(
        long,
        global = true,
        env = "ONELOCK_STORE",
        hide_env_values = true,
        value_name = "URL",
        value_parser = store
    )]
    pub(crate) store: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs.
    Run(RunArgs),
    /// Show who holds a lock and who waits. Exit code 0 when it is held, 1 when it is free.
    Status(StatusArgs),
    /// List the names in use.
    List(ListArgs),
    /// Take a lock, or a place in its line, away from whoever has it. Exit code 1 when nobody has that token.
    Evict(EvictArgs),
    /// Show the gates of a quorum's members, or open them by your word. Exit code 0 when all are open, 1 when not.
    Gates(GatesArgs),
    /// List the stores of this build and how to reach them.
    Stores(StoresArgs),
    /// Run the shared suite against a store, and report what held. Exit code 1 when a promise was broken.
    Check(CheckArgs),
    /// Measure stores side by side.
    Bench(BenchArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Parser)]
#[command(
    after_help = EXIT_CODES,
    long_about = "Hold a lock while a command runs.\n\n\
        Waits for the lock, runs the command with ONELOCK_NAME and ONELOCK_TOKEN in its environment, keeps the lease \
        renewed, forwards signals to the command's process group, and gives the lock back when the last process of \
        that group has ended. If the lock is being lost, the group is ended before the lease can run out: TERM, and \
        KILL after the grace. That holds even when onelock itself is stopped or killed."
)]
pub(crate) struct RunArgs {
    /// The name of the lock: 1 to 255 bytes, no control characters.
    pub(crate) name: String,
    /// The lease: how soon others get the lock after this machine died. The URL's, or 30s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Wait at most this long, for the lock and for a store that is away.
    #[arg(short, long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait at all, neither for the lock nor for the store.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Share the lock with others that say so.
    #[arg(short, long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Hold it together with up to N - 1 others that say the same N.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// How long after TERM comes KILL when the lock is lost; at most a third of the lease.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    /// The label that `status` shows. By default user, host, process id and the command.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The exit code when the lock is busy.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::Exit::BUSY.0)]
    pub(crate) conflict_exit_code: u8,
    /// Give the lock back as soon as the command itself ends, even if processes that it started in its group run on
    /// without it.
    #[arg(long)]
    pub(crate) leader_only: bool,
    /// Say on stderr when the lock is taken, with its token, and given back.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Parser)]
pub(crate) struct StatusArgs {
    /// The name of the lock.
    pub(crate) name: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct ListArgs {
    /// Only names that start with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct EvictArgs {
    /// The name of the lock.
    pub(crate) name: String,
    /// The token of the holder or waiter, as `status` shows it. Nothing happens when it has changed meanwhile.
    #[arg(long, value_parser = token)]
    pub(crate) token: FencingToken,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
#[command(long_about = "Show the gates of a quorum's members, or open them by your word.\n\n\
        A member whose gate is shut has no vote: it was started anew and may have forgotten what it granted. The others \
        open it after the quarantine, by themselves, while a majority of them is open. Where it is not (the very first \
        start, or too many restarted at once), only a person can know that nothing is held: then --open.")]
pub(crate) struct GatesArgs {
    /// Open every gate that is shut. Only when nobody holds or awaits a lock of this quorum, and nobody has for the
    /// longest lease. All members must be there.
    #[arg(long)]
    pub(crate) open: bool,
    /// A number that every token to come must exceed, beside those that the members know: where a majority may have
    /// lost numbers, one above every token ever given.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "open", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) floor: i64,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct StoresArgs {
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An empty URL is a variable that was not set where it was meant to be, and not a wish for the default store.
fn store(url: &str) -> Result<String, String> {
    match url {
        "" => Err("it is empty; unset ONELOCK_STORE for the default store".into()),
        url => Ok(url.into()),
    }
}

fn token(text: &str) -> Result<FencingToken, String> {
    text.parse().map_err(|_| "a token is a positive whole number".into())
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
        assert_eq!(run.command, ["ls", "--ttl"]);
        assert_eq!(run.ttl, Some(Duration::from_secs(2)));
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
            "evict a",
            "evict a --token 0",
            "evict a --token -1",
            "gates --floor 7",
            "gates --open --floor -1",
            "status",
            "bench --all redis://h",
            "bench --rounds 0",
            "bench --from old.json --quick",
            "frob",
        ] {
            assert!(
                Args::try_parse_from("onelock ".chars().chain(bad.chars()).collect::<String>().split(' '))
                    .is_err(),
                "{bad}"
            );
        }
    }
}
