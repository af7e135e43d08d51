//! `onelock bench --all` with other libraries beside the stores and their drivers, in one run.
//!
//! `cargo run --release --manifest-path bench/peers/Cargo.toml -- [--quick] [--peers] [--rounds=N] FILE.json [WORKLOAD…]`
//!
//! It writes the figures to the file, for `onelock bench --from FILE.json`, and prints them as tables. `--peers` leaves out
//! the rest. What is known about each of them stands in its file.

mod distributed_lock;
mod etcd;
mod redis;
mod sqlx_lock;
mod zk;

use std::num::NonZeroU32;
use std::sync::Arc;

use onelock_bench::data::Kind;
use onelock_bench::networked::{Networked, Connector};
use onelock_bench::report;
use onelock_bench::run::{Plan, Step, Stop, runtime, workloads};
use onelock_bench::servers::{self, Running};
use onelock_bench::subject::{Failure, Need, Subject};
use onelock_bench::workload::Effort;
use tokio::sync::watch;

/// More of them than `onelock bench` makes: the verdicts of the published figures lean on small differences.
const ROUNDS: u32 = 5;

fn main() -> Result<(), Failure> {
    runtime()?.block_on(compare())
}

async fn compare() -> Result<(), Failure> {
    let (options, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| given == option);
    let Some((file, ids)) = words.split_first() else {
        return Err("usage: [--quick] [--peers] [--rounds=N] FILE.json [WORKLOAD…]".into());
    };
    let workloads = workloads(ids)?;
    let fleet = servers::all().await?;
    for why in &fleet.left_out {
        eprintln!("left out: {why}");
    }
    let mut subjects = if has("--peers") { Vec::new() } else { fleet.subjects.clone() };
    subjects.extend(fleet.servers.iter().flat_map(peers));
    let effort = if has("--quick") { Effort::quick() } else { Effort::full() };
    let given = options.iter().find_map(|option| option.strip_prefix("--rounds="));
    let rounds = match given {
        Some(number) => {
            number.parse::<NonZeroU32>().map_err(|error| format!("--rounds={number}: {error}"))?.get()
        }
        None if has("--quick") => 1,
        None => ROUNDS,
    };
    let plan = Plan { subjects, workloads, rounds, effort, left_out: Vec::new() };
    let (stop, stopped) = watch::channel(Stop::Never);
    tokio::spawn(async move {
        for how in [Stop::Soon, Stop::Now] {
            if tokio::signal::ctrl_c().await.is_ok() {
                // The run may have ended just now.
                let _ = stop.send(how);
            }
        }
    });
    let progress = |step: Step<'_>| {
        eprintln!("{}/{} {} {} on {}", step.done, step.all, step.workload, step.size, step.subject);
    };
    let run = tokio::spawn(plan.run(stopped, progress)).await??;
    std::fs::write(file, report::json(&run)?)?;
    println!("{}", report::markdown(&run));
    Ok(())
}

/// The other libraries that lock on a server. A peer is compared with what makes the same bargain: locks of a session with
/// locks of a session.
fn peers(server: &Running) -> Vec<Arc<dyn Subject>> {
    match server.store {
        "redis" => vec![
            peer(server, "redis", "rslock 0.10", redis::Rslock),
            peer(server, "redis", "distributed-lock 0.2", distributed_lock::Redis),
        ],
        "etcd" => vec![peer(server, "etcd", "the server's lock service", etcd::Service)],
        "zk" => vec![peer(server, "zk", "zookeeper-client 0.11, its recipe", zk::Recipe)],
        "postgres" => vec![
            peer(server, "postgres+session", "sqlx 0.9, PgAdvisoryLock", sqlx_lock::Advisory),
            peer(server, "postgres+session", "distributed-lock 0.2", distributed_lock::Postgres),
        ],
        "mysql" => vec![peer(server, "mysql+session", "distributed-lock 0.2", distributed_lock::MySql)],
        _ => Vec::new(),
    }
}

fn peer<W: Connector + 'static>(server: &Running, store: &str, library: &str, way: W) -> Arc<dyn Subject> {
    let id = format!("{store}, {library}");
    Arc::new(Networked::new(Kind::Peer, &id, store, library, server, way))
}

/// What none of them does here.
fn lacks(need: Need) -> Option<String> {
    let why = match need {
        Need::Reentry => "it does not know its owner again",
        Need::Shared | Need::Permits => "exclusive locks only were compared",
        Need::Unfair => "its order cannot be chosen",
        Need::Ping => "other libraries have no baseline",
        Need::Apart => "other libraries were compared in one process",
        Need::Wait | Need::Try | Need::Renewal | Need::Crash => return None,
    };
    Some(why.to_owned())
}
