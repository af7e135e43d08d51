//! What a crowd costs, for the table on the store's page:
//! `cargo test -p lock-sql --features postgres --release --test postgres -- --ignored --nocapture --test-threads 1`

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Locks, Settings};
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use lock_conformance::servers::pgbouncer::PgBouncer;

const CROWD: usize = 1_000;
const IDLE: Duration = Duration::from_secs(60);

async fn client(url: &str) -> Locks {
    let mut settings = Settings::default();
    settings.ttl = Duration::from_secs(30);
    settings.waiter_lease = Duration::from_secs(30);
    Locks::builder(Arc::new(open(url).await)).settings(settings).build().unwrap()
}

/// What this process has in memory, in bytes.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// What this process has spent, user and system, in seconds.
fn spent() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

async fn crowd(server: &PostgresServer, url: &str, what: &str) {
    let other = client(url).await;
    let hot = other.mutex("hot").unwrap().acquire().await.unwrap();
    let mut admin = server.admin_beside().await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onelock'";
    let (connections, before): (i64, _) = (admin.fetch_one(sql).await.unwrap().get(0), memory());
    let locks = client(url).await;
    let mut held = Vec::new();
    for i in 0..CROWD {
        held.push(locks.mutex(format!("held-{i}")).unwrap().acquire().await.unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let lock = locks.mutex("hot").unwrap();
        waiters.spawn(async move { lock.acquire().await });
    }
    while other.inspect("hot").await.unwrap().waiters.len() < CROWD {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let connections = admin.fetch_one(sql).await.unwrap().get::<i64, _>(0) - connections;
    let grown = memory().saturating_sub(before);
    let (asked, cpu) = (server.asked().unwrap().len(), spent());
    tokio::time::sleep(IDLE).await;
    let idle = IDLE.as_secs_f64();
    let asked = server.asked().unwrap().split_off(asked);
    let requests = asked.len() as f64 / idle;
    let count = |what: &str| asked.iter().filter(|line| line.contains(what)).count();
    let kinds = ["acquire(", "renew(", "release(", "watched(", "SELECT 1"].map(|what| (what, count(what)));
    let cpu = (spent() - cpu) / idle * 100.0;
    assert!(held.iter().all(lock_core::client::guard::Guard::is_held), "a lock was lost");
    assert_eq!(other.inspect("hot").await.unwrap().waiters.len(), CROWD, "a waiter was lost");
    println!(
        "{what}: {CROWD} held and {CROWD} waiting: {connections} connections, {requests:.2} requests/s, \
         {:.1} MiB, {cpu:.1} % of a core (two clients); {kinds:?}",
        grown as f64 / 1_048_576.0
    );
    waiters.abort_all();
    drop(hot);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_thousand_held_and_a_thousand_waiting() {
    let server = PostgresServer::start(&[]).await.unwrap();
    crowd(&server, &server.url(), "direct").await;
    let server = PostgresServer::start(&[]).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    crowd(&server, &pooler.url("postgres"), "pooler").await;
}
