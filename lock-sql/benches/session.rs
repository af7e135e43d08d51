//! What session locks cost. First the uncontended cycle: the bare two calls by the same driver, the client, and the lock that
//! the driver itself has; they take turns cycle by cycle, so that whatever else the machine does hits them alike; medians.
//! Then how often a lock changes hands between eight clients, and between eight users of the driver's own lock.
//!
//! `cargo bench -p lock-sql --features postgres --bench session`. It needs Debian's `postgresql`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

// Some of it only the tests use.
#[allow(dead_code)]
#[path = "../tests/postgres_server/mod.rs"]
mod postgres_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_core::{BootClock, Locks, Settings};
use lock_sql::POSTGRES_SESSION_DRIVER;
use postgres_server::{PostgresServer, connect};
use sqlx::Executor as _;
use sqlx::postgres::PgAdvisoryLock;

const CYCLES: usize = 5_000;
const CONTENDERS: usize = 8;
const CONTEND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = PostgresServer::start_on_disk(&["log_statement=none"]).await.unwrap();
        let times = cycles(&server).await;
        let floor = median(times[0].clone());
        for (what, times) in ["bare", "client", "driver's own"].into_iter().zip(times) {
            let median = median(times);
            println!("{what:13} median {:6.1} us  {:.2} of bare", median * 1e6, median / floor);
        }
        for _ in 0..ROUNDS {
            println!(
                "client:       {:7.0} owner changes a second, {CONTENDERS} clients",
                ours(&server).await
            );
            println!("driver's own: {:7.0}", theirs(&server).await);
        }
    });
}

async fn open(server: &PostgresServer) -> Locks {
    let url = format!("postgres+session://postgres@127.0.0.1:{}/postgres?sslmode=disable", server.port());
    let clock = Arc::new(BootClock);
    Locks::open(&url, &[POSTGRES_SESSION_DRIVER], Settings::default(), clock).await.unwrap()
}

async fn cycles(server: &PostgresServer) -> [Vec<f64>; 3] {
    let lock = open(server).await.mutex("cycle").unwrap();
    let mut bare = connect(server.port(), "postgres", "bare").await.unwrap();
    let mut own = connect(server.port(), "postgres", "own").await.unwrap();
    let advisory = PgAdvisoryLock::new("cycle");
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..CYCLES {
        let began = Instant::now();
        bare.execute(sqlx::query("SELECT pg_advisory_lock($1)").bind(7_i64)).await.unwrap();
        bare.execute(sqlx::query("SELECT pg_advisory_unlock($1)").bind(7_i64)).await.unwrap();
        times[0].push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        times[1].push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        advisory.acquire(&mut own).await.unwrap().release_now().await.unwrap();
        times[2].push(began.elapsed().as_secs_f64());
    }
    times
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn ours(server: &PostgresServer) -> f64 {
    let mut locks = Vec::new();
    for _ in 0..CONTENDERS {
        locks.push(open(server).await.mutex("contended").unwrap());
    }
    contend(locks, async |lock| lock.acquire().await.unwrap().release().await.unwrap()).await
}

async fn theirs(server: &PostgresServer) -> f64 {
    let mut own = Vec::new();
    for _ in 0..CONTENDERS {
        own.push(connect(server.port(), "postgres", "own").await.unwrap());
    }
    contend(own, async |conn| {
        PgAdvisoryLock::new("contended").acquire(conn).await.unwrap().release_now().await.unwrap();
    })
    .await
}

/// How often a second the work is done by all of them together.
async fn contend<T: Send + 'static>(
    each: Vec<T>,
    work: impl AsyncFn(&mut T) + Clone + Send + Sync + 'static,
) -> f64 {
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = each
        .into_iter()
        .map(|mut one| {
            let (over, done, work) = (Arc::clone(&over), Arc::clone(&done), work.clone());
            let runtime = tokio::runtime::Handle::current();
            // On a thread each, as processes would be.
            std::thread::spawn(move || {
                runtime.block_on(async {
                    while !over.load(Ordering::Relaxed) {
                        work(&mut one).await;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            })
        })
        .collect();
    let began = Instant::now();
    tokio::time::sleep(CONTEND).await;
    let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    }
    rate
}
