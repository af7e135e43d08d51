//! What the MySQL store costs, on a MariaDB server (or the MySQL server that `ONELOCK_MYSQLD` names):
//!
//! - `ratio`: the whole cycle through the client, and through the backend alone, as a ratio to the same statements sent
//!   raw by the same driver. The three take turns cycle by cycle, so that whatever else the machine does hits them alike;
//! - `owners`: changes of owner a second with 8 contenders, in one client and in 8;
//! - `crowd`: 1 000 held locks and 1 000 waiters on one client: connections, requests while idle, memory.
//!
//! `cargo bench -p lock-sql --features mysql --bench mysql_cost -- [ratio|owners|crowd]`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a benchmark")]

#[path = "../tests/mysql_server/mod.rs"]
mod mysql_server;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_conformance::servers::mariadb::mysqld;
use lock_core::{Backend, HolderId, LockName, Locks, Mode, Note, Request, Standing};
use lock_sql::{MySqlBackend, MySqlConfig};
use mysql_server::counter::Counter;
use mysql_server::{Admin as _, MariaDb};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, MySqlConnection};

const CYCLES: usize = 3_000;
const CROWD: usize = 1_000;
const IDLE: Duration = Duration::from_secs(20);

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wants = |what: &str| wanted.is_empty() || wanted.iter().any(|w| w == what);
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if wants("ratio") {
        single().block_on(ratio());
    }
    if wants("owners") {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        for clients in [1, 8] {
            runtime.block_on(owners(clients));
        }
    }
    if wants("crowd") {
        // A line each, or one line for all.
        for lines in [CROWD, 1] {
            single().block_on(crowd(lines));
        }
    }
}

async fn backend(url: &str) -> MySqlBackend {
    MySqlBackend::connect(MySqlConfig::from_url(url.parse().unwrap()).unwrap()).await.unwrap()
}

async fn client(url: &str) -> Locks {
    Locks::builder(Arc::new(backend(url).await)).build().unwrap()
}

/// A statement of the store with these values, sent as the store sends it.
fn filled(text: &str, values: &[(&str, &str)]) -> String {
    let mut text: String = text
        .lines()
        .filter(|line| !line.starts_with("--"))
        .fold(String::new(), |all, line| all + line + "\n");
    for (name, value) in values {
        text = text.replace(name, value);
    }
    if mysqld().is_some() { text } else { format!("BEGIN NOT ATOMIC\n{text}END") }
}

async fn raw(connection: &mut MySqlConnection, sql: &str) {
    black_box(connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap());
}

async fn ratio() {
    let server = MariaDb::start(&[]).await.unwrap();
    let url = format!("{}?tls=off", server.url());
    let backend = backend(&url).await;
    let locks = client(&url).await;
    let lock = locks.mutex("client").unwrap();
    let options =
        MySqlConnectOptions::new().host("127.0.0.1").port(server.port()).username("root").database("locks");
    let mut connection = options.disable_statement_logging().connect().await.unwrap();
    let session = filled(include_str!("../src/mysql/sql/session.sql"), &[(":lock_wait", "1")]);
    raw(&mut connection, session.trim_start_matches("BEGIN NOT ATOMIC\n").trim_end_matches("END")).await;
    let values = [
        (":waiter_lease", "10000000"),
        (":lease", "30000000"),
        (":holder", "x'00112233445566778899aabbccddeeff'"),
        (":name", "x'726177'"),
        (":mode", "x'78'"),
        (":room", "1"),
        (":queue", "1"),
        (":note", "x'686f73743a31323334'"),
        (":after", "0"),
    ];
    let acquire = filled(include_str!("../src/mysql/sql/acquire.sql"), &values);
    let release = filled(include_str!("../src/mysql/sql/release.sql"), &values);
    let ask = Request {
        name: LockName::new("backend").unwrap(),
        holder: HolderId::random().unwrap(),
        mode: Mode::Exclusive,
        lease: Duration::from_secs(30),
        waiter_lease: Duration::from_secs(10),
        delay: Duration::ZERO,
        queue: true,
        note: Note::new("host:1234").unwrap(),
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for cycle in 0..CYCLES + 300 {
        // Each comes first, second and last equally often.
        for turn in 0..3 {
            let who = (cycle + turn) % 3;
            let began = Instant::now();
            match who {
                0 => {
                    raw(&mut connection, &acquire).await;
                    raw(&mut connection, &release).await;
                }
                1 => {
                    assert!(matches!(backend.acquire(&ask).await.unwrap(), Standing::Held(_)));
                    black_box(backend.release(&ask.ticket()).await.unwrap());
                }
                _ => lock.acquire().await.unwrap().release().await.unwrap(),
            }
            if cycle >= 300 {
                times[who].push(began.elapsed());
            }
        }
    }
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    println!("ratio: an uncontended cycle, medians of {CYCLES}");
    for (what, median) in ["raw", "backend", "client"].into_iter().zip(medians) {
        println!("  {what:8} {:7.1} us  {:.3} of raw", median * 1e6, median / medians[0]);
    }
}

async fn owners(clients: usize) {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(client(&format!("{}?tls=off", server.url())).await);
    }
    let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let lock = all[task % clients].mutex("contended").unwrap();
        let (stop, changes) = (Arc::clone(&stop), Arc::clone(&changes));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                lock.acquire().await.unwrap().release().await.unwrap();
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, since) = (changes.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let rate = (changes.load(Ordering::Relaxed) - before) as f64 / since.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    println!("owners: {rate:.0} changes of owner a second, 8 contenders in {clients} client(s)");
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn crowd(lines: usize) {
    let server = MariaDb::start(&[]).await.unwrap();
    let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    let locks = client(&format!("mysql://root@127.0.0.1:{}/locks?tls=off", counter.port())).await;
    let before = resident();
    let mut guards = Vec::with_capacity(CROWD);
    for i in 0..CROWD {
        guards.push(locks.mutex(format!("crowd-{i}")).unwrap().acquire().await.unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for i in 0..CROWD {
        let lock = locks.mutex(format!("crowd-{}", i % lines)).unwrap();
        waiters.spawn(async move { lock.acquire().await.unwrap().lost().await });
    }
    let waiting = "SELECT COUNT(*) FROM locks.onelock_line";
    while server.count(waiting).await.unwrap() < 2 * CROWD as u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let counts = counter.counts();
    let now = || [&counts.verbs, &counts.looks, &counts.tidying].map(|count| count.load(Ordering::SeqCst));
    let cpu = || server.cpu().unwrap();
    let (was, since, cpu_was) = (now(), Instant::now(), cpu());
    tokio::time::sleep(IDLE).await;
    let seconds = since.elapsed().as_secs_f64();
    let (is, cpu_is) = (now(), cpu());
    let [verbs, looks, tidying] = [0, 1, 2].map(|i| (is[i] - was[i]) as f64 / seconds);
    let kib = resident().saturating_sub(before);
    println!(
        "crowd: {CROWD} held locks and {CROWD} waiters in {lines} line(s) on one client, idle for {seconds:.0} s"
    );
    println!("  {} connections", counts.open.load(Ordering::SeqCst));
    println!(
        "  {:.1} requests a second: {verbs:.1} renewals, {looks:.1} looks, {tidying:.1} house-keeping",
        verbs + looks + tidying
    );
    println!("  {kib} KiB more than before, {:.1} KiB an entry", kib as f64 / (2 * CROWD) as f64);
    println!("  the server uses {:.1} % of a core", (cpu_is - cpu_was).as_secs_f64() / seconds * 100.0);
    assert!(guards.iter().all(lock_core::Guard::is_held));
    waiters.shutdown().await;
    drop(guards);
    locks.close(Duration::from_secs(10)).await.unwrap();
}
