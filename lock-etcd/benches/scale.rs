//! A thousand held locks and a thousand waiters on one client: connections, requests a second while nothing happens, and
//! memory.
//!
//! `cargo bench -p lock-etcd --bench scale`. It needs `etcd` in the path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::harness::open_by;
use lock_core::{Backend, Locks, Page, Result};
use lock_etcd::DRIVER;
use support::server::Member;
use tokio::task::JoinSet;

const LOCKS: usize = 1_000;
/// A multiple of both leases, so that what is renewed is counted evenly.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("{LOCKS} held locks and {LOCKS} waiters on one client, default settings:");
    for crowd in [false, true] {
        runtime.block_on(measure(crowd));
    }
}

async fn measure(crowd: bool) {
    let server = start().await;
    let locks = Locks::builder(open(&url(&server)).await.unwrap()).build().unwrap();
    locks.mutex("first").unwrap().acquire().await.unwrap().release().await.unwrap();
    let empty = resident();
    let mut guards = Vec::new();
    for i in 0..LOCKS {
        guards.push(locks.mutex(format!("held-{i}")).unwrap().acquire().await.unwrap());
    }
    let held = resident();
    let mut tasks = JoinSet::new();
    for i in 0..LOCKS {
        let lock = locks.mutex(format!("held-{}", if crowd { 0 } else { i })).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap().lost().await });
    }
    // All stand in the line, and whoever has just joined has asked what it had to.
    let watcher = Locks::builder(open(&url(&server)).await.unwrap()).build().unwrap();
    loop {
        let page = watcher.list("held-", &Page::first(2 * LOCKS).unwrap()).await.unwrap();
        if page.names.iter().map(|name| name.waiters).sum::<usize>() == LOCKS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    watcher.close(Duration::from_secs(5)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (waiting, connections, before) = (resident(), connections(&server), requests(&server).await);
    tokio::time::sleep(IDLE).await;
    let rate = (requests(&server).await - before) as f64 / IDLE.as_secs_f64();
    assert!(guards.iter().all(lock_core::Guard::is_held), "a lock was lost");
    assert!(tasks.try_join_next().is_none(), "a waiter held");
    let each = |more: u64, less: u64| more.saturating_sub(less) as f64 / LOCKS as f64;
    let layout = if crowd { "all waiters behind one lock" } else { "a waiter behind each lock" };
    println!(
        "  {layout:28} {connections} connections, {rate:.1} requests/s idle, {:.1} KiB a held lock, {:.1} KiB a waiter, \
         {:.1} MiB resident in all",
        each(held, empty),
        each(waiting, held),
        waiting as f64 / 1024.0,
    );
    tasks.abort_all();
}

/// What of this process is in memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn start() -> Member {
    Member::single(None).await.unwrap()
}

fn url(server: &Member) -> String {
    server.url()
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    open_by(&DRIVER, url).await
}

/// Messages of every kind that the server has received from clients.
async fn requests(server: &Member) -> u64 {
    server.received().await.unwrap().into_iter().map(|(_, count)| count).sum()
}

fn connections(server: &Member) -> u64 {
    server.connections().unwrap()
}
