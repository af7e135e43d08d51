//! What session locks cost on MariaDB. First the uncontended cycle: the bare `GET_LOCK` and `RELEASE_LOCK` by prepared statements of
//! the same driver, and the client; they take turns cycle by cycle, so that whatever else the machine does hits them alike;
//! medians. Then how often a lock changes hands between eight clients, and between eight users of the bare calls.
//!
//! `cargo bench -p lock-sql --features mysql --bench mysql_session`. It needs Debian's `mariadb-server`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

#[path = "../tests/mysql_server/mod.rs"]
mod mysql_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_core::{BootClock, Locks, Settings};
use lock_sql::MYSQL_SESSION_DRIVER;
use mysql_server::{Admin as _, MariaDb};
use sqlx::{Executor as _, MySqlConnection};

const CYCLES: usize = 5_000;
const CONTENDERS: usize = 8;
const CONTEND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = MariaDb::start(&[]).await.unwrap();
        let [bare, client] = cycles(&server).await.map(median);
        println!("bare    median {:6.1} us", bare * 1e6);
        println!("client  median {:6.1} us  {:.2} of bare", client * 1e6, client / bare);
        for _ in 0..ROUNDS {
            println!("client: {:7.0} owner changes a second, {CONTENDERS} clients", ours(&server).await);
            println!("bare:   {:7.0}", theirs(&server).await);
        }
    });
}

async fn open(server: &MariaDb) -> Locks {
    let url = format!("mysql+session://root@127.0.0.1:{}/locks?tls=off", server.port());
    let clock = Arc::new(BootClock);
    Locks::open(&url, &[MYSQL_SESSION_DRIVER], Settings::default(), clock).await.unwrap()
}

async fn bare(conn: &mut MySqlConnection) {
    conn.fetch_one(sqlx::query("SELECT GET_LOCK(?, 60)").bind("bare")).await.unwrap();
}

async fn give(conn: &mut MySqlConnection) {
    conn.fetch_one(sqlx::query("SELECT RELEASE_LOCK(?)").bind("bare")).await.unwrap();
}

async fn cycles(server: &MariaDb) -> [Vec<f64>; 2] {
    let lock = open(server).await.mutex("cycle").unwrap();
    let mut conn = server.admin().await.unwrap();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CYCLES {
        let start = Instant::now();
        bare(&mut conn).await;
        give(&mut conn).await;
        times[0].push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        lock.acquire().await.unwrap().release().await.unwrap();
        times[1].push(start.elapsed().as_secs_f64());
    }
    times
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs eight tasks until the time is over, and counts their turns.
async fn turns<T: Future<Output = ()> + Send + 'static>(make: impl Fn(Count) -> T) -> f64 {
    let count = Count::default();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        tasks.spawn(make(count.clone()));
    }
    let start = Instant::now();
    tokio::time::sleep(CONTEND).await;
    count.over.store(true, Ordering::Relaxed);
    let turns = count.turns.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    turns
}

#[derive(Clone, Default)]
struct Count {
    turns: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Count {
    /// One more turn; whether there is time for another.
    fn another(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }
}

async fn ours(server: &MariaDb) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CONTENDERS {
        clients.push(open(server).await.mutex("contended").unwrap());
    }
    let clients = std::sync::Mutex::new(clients);
    turns(|count| {
        let lock = clients.lock().unwrap().pop().unwrap();
        async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                let another = count.another();
                guard.release().await.unwrap();
                if !another {
                    return;
                }
            }
        }
    })
    .await
}

async fn theirs(server: &MariaDb) -> f64 {
    let mut conns = Vec::new();
    for _ in 0..CONTENDERS {
        conns.push(server.admin().await.unwrap());
    }
    let conns = std::sync::Mutex::new(conns);
    turns(|count| {
        let mut conn = conns.lock().unwrap().pop().unwrap();
        async move {
            loop {
                bare(&mut conn).await;
                let another = count.another();
                give(&mut conn).await;
                if !another {
                    return;
                }
            }
        }
    })
    .await
}
