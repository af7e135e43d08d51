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
#[command(
    name = "onelock",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = crate::absent::HELP
)]
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
    /// Wait until a lock is free.
    Wait(WaitArgs),
    /// Keep one instance of a command running in the whole fleet.
    Elect(ElectArgs),
    /// Show who leads an election. Exit code 0 when somebody does, 1 when nobody does.
    Leader(LeaderArgs),
    /// Show who holds a lock and who waits. Exit code 0 when it is held, 1 when it is free.
    Status(StatusArgs),
    /// Print the changes of a line as they come.
    Watch(WatchArgs),
    /// List the names in use.
    List(ListArgs),
    /// Show names, holders and waiters, live.
    Top(TopArgs),
    /// Find clients that wait for each other. Exit code 0 when there are none, 1 when there are.
    Deadlocks(DeadlocksArgs),
    /// Take a lock, or a place in its line, away from whoever has it. Exit code 1 when nobody has that token.
    Evict(EvictArgs),
    /// Show the gates of a quorum's members, or open them by your word. Exit code 0 when all are open, 1 when not.
    Gates(GatesArgs),
    /// Reach the store, read and write it, and say how long that took.
    Ping(PingArgs),
    /// List the stores of this build and how to reach them.
    Stores(StoresArgs),
    /// Run the shared suite against a store, and report what held. Exit code 1 when a promise was broken.
    #[cfg(feature = "check")]
    Check(CheckArgs),
    /// Measure stores side by side.
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
    match url {
        "" => Err("it is empty; unset ONELOCK_STORE for the default store".into()),
        url => Ok(url.into()),
    }
}

/// A lock's name, or how names begin; what they may be, the library says. A store's URL in its place is a mistake: the
/// default store would be asked, and would show the URL's password as a name.
#[derive(Clone)]
pub(crate) struct Name;

impl TypedValueParser for Name {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&Arg>,
        text: &OsStr,
    ) -> Result<String, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, arg, text)?;
        let is_url = |scheme: &&str| text.strip_prefix(*scheme).is_some_and(|rest| rest.starts_with("://"));
        if onelock::families().iter().flat_map(|family| family.schemes).any(is_url) {
            let what = "a store's URL stands where a name is expected: put it behind --store\n";
            return Err(clap::Error::raw(ErrorKind::ValueValidation, what).with_cmd(command));
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
