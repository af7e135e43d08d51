//! A thousand held locks and a thousand waiters on one client of a file: write transactions a second while nothing happens,
//! processor time, and memory.
//!
//! `cargo bench -p lock-sql --features sqlite --bench sqlite_scale`.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, BootClock, Locks, Page};
use lock_sql::{SqliteBackend, SqliteConfig};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::task::JoinSet;
use tokio::time::Instant;

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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let config = SqliteConfig::new(&file);
    let backend = SqliteBackend::open(config, Arc::new(BootClock)).await.unwrap();
    let locks = Locks::builder(Arc::new(backend) as Arc<dyn Backend>).build().unwrap();
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
    loop {
        let page = locks.list("held-", &Page::first(2 * LOCKS).unwrap()).await.unwrap();
        if page.names.iter().map(|name| name.waiters).sum::<usize>() == LOCKS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (waiting, before) = (resident(), processor());
    let writes = writes(&file).await;
    let share = (processor() - before) / IDLE.as_secs_f64();
    assert!(guards.iter().all(lock_core::Guard::is_held), "a lock was lost");
    assert!(tasks.try_join_next().is_none(), "a waiter held");
    let each = |more: u64, less: u64| more.saturating_sub(less) as f64 / LOCKS as f64;
    let layout = if crowd { "all waiters behind one lock" } else { "a waiter behind each lock" };
    println!(
        "  {layout:28} {writes:.1} writes/s idle, {:.1} % of a core, {:.1} KiB a held lock, {:.1} KiB a waiter",
        share * 100.0,
        each(held, empty),
        each(waiting, held),
    );
    tasks.abort_all();
}

/// Write transactions a second over [`IDLE`]: how often another connection sees the file's version change. Two within
/// a few milliseconds count as one.
async fn writes(file: &std::path::Path) -> f64 {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut look = options.disable_statement_logging().connect().await.unwrap();
    let (end, mut last, mut count) = (Instant::now() + IDLE, None, 0_u32);
    while Instant::now() < end {
        let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut look).await.unwrap();
        count += u32::from(last.replace(version).is_some_and(|last| last != version));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    look.close().await.unwrap();
    f64::from(count) / IDLE.as_secs_f64()
}

/// Seconds of processor time this process has used.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = [11, 12].iter().map(|i| fields[*i].parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// What of this process is in memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
