//! What PostgreSQL locks cost. First the uncontended cycle through the client, and through the backend alone, as a ratio
//! to the same two functions called raw by the same driver: the three take turns cycle by cycle, so that whatever else
//! the machine does hits them alike; medians. Then how often a lock changes hands between eight clients, and which share of
//! the time it is in use when they keep it for 2 ms and come again after 5; durable and relaxed in turns.
//!
//! `cargo bench -p lock-sql --features postgres --bench postgres`. It needs Debian's `postgresql`. The data is on the
//! disk of the temporary folder with `fsync` on, so that a commit is durable; `ONELOCK_MEMORY=1` puts it in memory.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

// Some of it only the tests use.
#[allow(dead_code)]
#[path = "../tests/postgres_server/mod.rs"]
mod postgres_server;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_core::{Backend, HolderId, LockName, Locks, Mode, Note, Request, Standing, StoreUrl};
use lock_sql::{PostgresBackend, PostgresConfig};
use postgres_server::{PostgresServer, connect};
use sqlx::{AssertSqlSafe, Executor as _};

const CYCLES: usize = 3_000;
const CONTENDERS: usize = 8;
const CONTEND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;

const ACQUIRE: &str = include_str!("../src/postgres/sql/acquire_and_flush.sql");
const RELEASE: &str = include_str!("../src/postgres/sql/release.sql");

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let quiet = ["log_statement=none"];
        let server = if std::env::var_os("ONELOCK_MEMORY").is_some() {
            PostgresServer::start(&quiet).await.unwrap()
        } else {
            PostgresServer::start_on_disk(&quiet).await.unwrap()
        };
        let [mut raw, mut backend, mut client] = measure(&server).await;
        let floor = median(&mut raw);
        for (what, times) in
            [("raw", floor), ("backend", median(&mut backend)), ("client", median(&mut client))]
        {
            let ratio = times.as_secs_f64() / floor.as_secs_f64();
            println!("{what:8} median {:7.1} us  {ratio:.3} of raw", times.as_secs_f64() * 1e6);
        }
        for _ in 0..ROUNDS {
            for durability in ["durable", "relaxed"] {
                let rate = contend(&server, durability, Duration::ZERO, Duration::ZERO).await.0;
                let (hold, think) = (Duration::from_millis(2), Duration::from_millis(5));
                let (slow, used) = contend(&server, durability, hold, think).await;
                println!(
                    "{durability}: {rate:.0} owner changes a second between {CONTENDERS} clients; with 2 ms in use and \
                     5 ms between {slow:.0}, in use {:.1} % of the time",
                    used * 100.0
                );
            }
        }
    });
}

async fn open(server: &PostgresServer, durability: &str) -> Arc<PostgresBackend> {
    let url: StoreUrl = format!("{}?durability={durability}", server.url()).parse().unwrap();
    Arc::new(PostgresBackend::open(PostgresConfig::from_url(url).unwrap()).await.unwrap())
}

async fn measure(server: &PostgresServer) -> [Vec<Duration>; 3] {
    let backend = open(server, "durable").await;
    let locks = Locks::builder(open(server, "durable").await).build().unwrap();
    let lock = locks.mutex("a").unwrap();
    let mut raw = connect(server.port(), "postgres", "raw").await.unwrap();
    raw.execute("SET default_transaction_isolation = 'read committed'").await.unwrap();
    let [acquire, release] =
        [ACQUIRE, RELEASE].map(|sql| Arc::<str>::from(sql.trim().replace("{schema}", "onelock")));
    let ask = Request {
        name: LockName::new("a").unwrap(),
        holder: HolderId::random().unwrap(),
        mode: Mode::Exclusive,
        lease: Duration::from_secs(30),
        waiter_lease: Duration::from_secs(30),
        delay: Duration::ZERO,
        queue: true,
        note: Note::new("a note").unwrap(),
    };
    let holder = ask.holder.as_u128().to_be_bytes().to_vec();

    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for cycle in 0..CYCLES + 300 {
        let began = Instant::now();
        let query = sqlx::query(AssertSqlSafe(acquire.clone()))
            .bind("a")
            .bind(&holder)
            .bind("x")
            .bind(30_000_000_i64);
        let query = query.bind(30_000_000_i64).bind(0_i64).bind(true).bind("raw").bind("a note");
        black_box(query.fetch_all(&mut raw).await.unwrap());
        let query = sqlx::query(AssertSqlSafe(release.clone())).bind("a").bind(&holder);
        black_box(query.fetch_all(&mut raw).await.unwrap());
        let done = Instant::now();
        let Standing::Held(_) = backend.acquire(&ask).await.unwrap() else { panic!("not held") };
        black_box(backend.release(&ask.ticket()).await.unwrap());
        let backend_done = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        let client_done = Instant::now();
        if cycle >= 300 {
            times[0].push(done - began);
            times[1].push(backend_done - done);
            times[2].push(client_done - backend_done);
        }
    }
    times
}

/// Owner changes a second, and the share of the time in which somebody owned it.
async fn contend(server: &PostgresServer, durability: &str, hold: Duration, think: Duration) -> (f64, f64) {
    let (changes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let used = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        let lock = Locks::builder(open(server, durability).await).build().unwrap().mutex("hot").unwrap();
        let (changes, stop, used) = (Arc::clone(&changes), Arc::clone(&stop), Arc::clone(&used));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await.unwrap();
                let began = Instant::now();
                if !hold.is_zero() {
                    tokio::time::sleep(hold).await;
                }
                used.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                changes.fetch_add(1, Ordering::Relaxed);
                guard.release().await.unwrap();
                if !think.is_zero() {
                    tokio::time::sleep(think).await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = (changes.load(Ordering::Relaxed), used.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(CONTEND).await;
    let elapsed = before.2.elapsed().as_secs_f64();
    let rate = (changes.load(Ordering::Relaxed) - before.0) as f64 / elapsed;
    let used = (used.load(Ordering::Relaxed) - before.1) as f64 / 1e9 / elapsed;
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    (rate, used)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
