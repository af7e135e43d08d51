//! A thousand held locks and a thousand waiters on one client: connections, what the servers see while nothing happens,
//! and memory.
//!
//! `cargo bench -p lock-redis --bench scale`. It needs `redis-server` in the path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::harness::open_by;
use lock_conformance::servers::redis::{RedisServer, Setup};
use lock_conformance::servers::redis_group::{Group, Plan, is_client};
use lock_conformance::servers::resp::Resp;
use lock_core::Locks;
use tokio::task::JoinSet;

const LOCKS: usize = 1_000;
/// A multiple of both leases, so that what is renewed is counted evenly.
const IDLE: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_secs(60);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let Some(which) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) else {
        println!("{LOCKS} held locks and {LOCKS} waiters on one client, default settings:");
        // Each in a process of its own: what the one before left in memory would be taken for its own.
        for which in ["redis", "plain", "sentinel", "cluster"] {
            let own = std::env::current_exe().unwrap();
            assert!(std::process::Command::new(own).arg(which).status().unwrap().success());
        }
        return;
    };
    runtime.block_on(async {
        match which.as_str() {
            "sentinel" => {
                let group = Group::start(Plan::sentinel(QUIET)).await.unwrap();
                measure("sentinel", &lock_redis::SENTINEL_DRIVER, &group.url(), group.masters()).await;
            }
            "cluster" => {
                let group = Group::start(Plan::cluster(0, QUIET)).await.unwrap();
                measure("cluster", &lock_redis::CLUSTER_DRIVER, &group.url(), group.masters()).await;
            }
            layout => {
                let server = RedisServer::start(Setup::default()).await.unwrap();
                let option = if layout == "plain" { "?layout=plain" } else { "" };
                let url = format!("redis://{}{option}", server.address());
                measure(layout, &lock_redis::DRIVER, &url, &[server.address()]).await;
            }
        }
    });
}

async fn measure(what: &str, driver: &lock_core::Driver, url: &str, servers: &[SocketAddr]) {
    let locks = Locks::builder(open_by(driver, url).await.unwrap()).build().unwrap();
    locks.mutex("first").unwrap().acquire().await.unwrap().release().await.unwrap();
    let empty = resident();
    let mut guards = Vec::new();
    for i in 0..LOCKS {
        guards.push(locks.mutex(format!("held-{i}")).unwrap().acquire().await.unwrap());
    }
    let held = resident();
    let mut tasks = JoinSet::new();
    for i in 0..LOCKS {
        let lock = locks.mutex(format!("held-{i}")).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap().lost().await });
    }
    // All have asked, and whoever has just joined has asked what it had to.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (waiting, before) = (resident(), seen(servers).await);
    tokio::time::sleep(IDLE).await;
    let after = seen(servers).await;
    assert!(guards.iter().all(lock_core::Guard::is_held), "a lock was lost");
    assert!(tasks.try_join_next().is_none(), "a waiter held");
    let rate = |after: u64, before: u64| (after - before) as f64 / IDLE.as_secs_f64();
    let each = |more: u64, less: u64| more.saturating_sub(less) as f64 / LOCKS as f64;
    println!(
        "  {what:16} {} connections, {:.1} scripts/s in {:.1} reads/s, {:.1} KiB a held lock, {:.1} KiB a waiter, {:.1} MiB resident",
        after.connections,
        rate(after.scripts, before.scripts),
        rate(after.reads, before.reads),
        each(held, empty),
        each(waiting, held),
        waiting as f64 / 1024.0,
    );
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    drop(guards);
    locks.close(Duration::from_secs(20)).await.unwrap();
}

struct Seen {
    connections: usize,
    scripts: u64,
    /// How often a server found something to read: about one for each packet of requests.
    reads: u64,
}

async fn seen(servers: &[SocketAddr]) -> Seen {
    let mut seen = Seen { connections: 0, scripts: 0, reads: 0 };
    for server in servers {
        let mut admin = Resp::connect(*server).await.unwrap();
        let own = format!(" addr={} ", admin.local());
        let list = admin.call(&["CLIENT", "LIST"]).await.unwrap().texts().concat();
        seen.connections += list.lines().filter(|line| is_client(line) && !line.contains(&own)).count();
        let info = admin.call(&["INFO", "everything"]).await.unwrap().texts().concat();
        let number = |start: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(start));
            line.map_or(0, |line| line.split(',').next().unwrap().trim().parse().unwrap())
        };
        seen.scripts += number("cmdstat_evalsha:calls=");
        seen.reads += number("total_reads_processed:");
    }
    seen
}

/// What of this process is in memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
