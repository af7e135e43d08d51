//! The `onelock` program: a distributed lock around any command.
//!
//! | module | what it owns |
//! |---|---|
//! | `args` | the command line |
//! | `absent` | what this build leaves out |
//! | `exit` | exit codes and the one error type |
//! | `files` | what `check` and `bench` write |
//! | `output` | stdout and stderr that survive a closed pipe |
//! | `store` | the store's URL and the client |
//! | `show` | `status`, `list`, `top`, `watch`, `leader`, `deadlocks`, `ping`, `stores` |
//! | `operate` | `evict`, `gates` |
//! | `check` | `check`: the shared suite against a server |
//! | `bench` | `bench`: the workloads that compare stores |
//! | `run` | `run`, `elect`, `wait`: acquire, guard, supervise, release |
//! | `deadman` | the process that ends the command when `run` cannot |
//! | `manual` | `completions`, `man` |
//! | `death` | ending by a signal |
//! | `elsewhere` | in place of `run` and the two below it, where the system is not Linux |

mod absent;
mod args;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "check")]
mod check;
#[cfg(target_os = "linux")]
mod deadman;
#[cfg(target_os = "linux")]
mod death;
mod exit;
#[cfg(any(feature = "bench", feature = "check"))]
mod files;
mod manual;
mod operate;
mod output;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod run;
mod show;
mod store;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command};
use exit::{Exit, Failure, Outcome};

fn main() -> ExitCode {
    choose_cryptography();
    let words: Vec<OsString> = std::env::args_os().collect();
    // Roles that only this program gives itself; they come before everything else and need no runtime.
    match words.get(1).and_then(|word| word.to_str()) {
        #[cfg(target_os = "linux")]
        Some(deadman::ROLE) => return deadman::main(words.get(2..).unwrap_or_default()),
        #[cfg(target_os = "linux")]
        Some(death::ROLE) => return death::main(words.get(2..).unwrap_or_default()),
        #[cfg(feature = "bench")]
        Some(bench::CONTENDER) => return bench::contend(),
        #[cfg(target_os = "linux")]
        Some(deadman::shim::ROLE) => return deadman::shim::main(words.get(2..).unwrap_or_default()),
        _ => {}
    }
    #[cfg(feature = "check")]
    if let Some(code) = check::serve_if_asked() {
        return code;
    }
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => {
            if let Some(failure) = absent::refused(&error) {
                return failure.report().into();
            }
            // What is refused may be a URL with a password.
            if error.context().any(|(_, part)| part.to_string().contains("://")) {
                return Failure::Usage(args::STRAY_URL.into()).report().into();
            }
            let code = if error.use_stderr() { Exit::USAGE } else { Exit::OK };
            // A closed pipe while printing help is nobody's error.
            let _ = error.print();
            return code.into();
        }
    };
    execute(args).unwrap_or_else(Failure::report).into()
}

fn execute(args: Args) -> Outcome {
    #[cfg(unix)]
    spare_descriptors().map_err(Failure::system("cannot start: too few file descriptors (ulimit -n)"))?;
    // One thread: its signal mask is the process's, and it is the parent that death signals are bound to.
    let runtime = match args.command {
        #[cfg(feature = "bench")]
        Command::Bench(_) => onelock_bench::run::runtime(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    }
    .map_err(Failure::system("cannot start"))?;
    // Our parent may have SIGCHLD ignored, and then the kernel reaps our children before we can wait for them. A handler
    // undoes that for us, and an exec for what we start.
    #[cfg(unix)]
    let _handler = {
        let _context = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())
            .map_err(Failure::system("cannot start"))?
    };
    let outcome = runtime.block_on(dispatch(args));
    // A store driver's blocking thread must not delay the exit.
    runtime.shutdown_background();
    outcome
}

/// A provider for the process, which libraries must not choose: several may be linked in. Nobody else chooses, so this is
/// never refused.
fn choose_cryptography() {
    #[cfg(feature = "tls-ring")]
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    #[cfg(all(feature = "tls-aws-lc", not(feature = "tls-ring")))]
    let _chosen = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Whether a runtime, a store and a deadman can be had. The runtime would panic where it cannot open what it needs.
#[cfg(unix)]
fn spare_descriptors() -> std::io::Result<()> {
    const NEEDED: usize = 20;
    use std::os::fd::AsFd as _;
    let input = std::io::stdin();
    (0..NEEDED).map(|_| input.as_fd().try_clone_to_owned()).collect::<Result<Vec<_>, _>>().map(drop)
}

async fn dispatch(args: Args) -> Outcome {
    let store = args.store;
    match args.command {
        Command::Run(args) => run::run(store, args).await,
        Command::Wait(args) => run::wait::wait(store, args).await,
        Command::Elect(args) => run::elect::elect(store, args).await,
        Command::Leader(args) => show::leader::leader(store, args).await,
        Command::Status(args) => show::status::status(store, args).await,
        Command::Watch(args) => show::watch::watch(store, args).await,
        Command::List(args) => show::list::list(store, args).await,
        Command::Top(args) => show::top::top(store, args).await,
        Command::Deadlocks(args) => show::deadlocks::deadlocks(store, args).await,
        Command::Evict(args) => operate::evict::evict(store, args).await,
        Command::Gates(args) => operate::gates::gates(store, args).await,
        Command::Ping(args) => show::ping::ping(store, args).await,
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::bench(store, args).await,
        #[cfg(feature = "check")]
        Command::Check(args) => check::check(store, args).await,
        Command::Stores(args) => show::stores::stores(&args),
        Command::Man(args) => manual::man(&args),
        Command::Completions { shell } => manual::completions(shell),
    }
}
