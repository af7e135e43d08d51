//! The queue of PostgreSQL's server, and who must leave it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_conformance::faults::{Fault, Link, Proxy};
use lock_conformance::servers::pgbouncer::PgBouncer;
use lock_core::{BootClock, ErrorKind, Guard, Locks, Result, Settings};
use lock_sql::POSTGRES_SESSION_DRIVER;
use sqlx::postgres::PgConnection;
use sqlx::{Executor as _, Row as _};

use crate::postgres_harness::start;
use crate::postgres_server::{Admin as _, PostgresServer};

/// Far more than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn open(port: u16, rest: &str) -> Result<Locks> {
    open_as("onelock", port, rest).await
}

async fn open_as(user: &str, port: u16, rest: &str) -> Result<Locks> {
    let url = format!("postgres+session://{user}@127.0.0.1:{port}/postgres?migrate=false{rest}");
    Locks::open(&url, &[POSTGRES_SESSION_DRIVER], Settings::default(), Arc::new(BootClock)).await
}

/// The sessions that wait for a lock.
async fn waiting(admin: &mut PgConnection) -> Vec<i32> {
    let rows = admin
        .fetch_all("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted ORDER BY waitstart")
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn until_waiting(admin: &mut PgConnection, count: usize) -> Vec<i32> {
    let end = Instant::now() + PATIENCE;
    loop {
        let pids = waiting(admin).await;
        if pids.len() == count {
            return pids;
        }
        assert!(Instant::now() < end, "{} sessions wait, not {count}", pids.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn acquire(locks: &Locks, name: &str) -> tokio::task::JoinHandle<Result<Guard>> {
    let lock = locks.mutex(name).unwrap();
    tokio::spawn(async move { lock.acquire().await })
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

/// Those who wait are served in the order in which they came, each by one session from the first moment to the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_keeps_its_order_and_its_places() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    // A quarter of its lease is how long a call waits: the wait lasts for several.
    let c = open(server.port(), "&ttl=1200ms").await.unwrap();
    let holder = a.mutex("queue").unwrap().acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (i, locks) in [&c, &b, &c, &a, &b].into_iter().enumerate() {
        let (waiter, served) = (acquire(locks, "queue"), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = waiter.await.unwrap().unwrap();
            served.send((i, guard.token().unwrap())).unwrap();
            guard.release().await.unwrap();
        }));
        until_waiting(&mut admin, i + 1).await;
    }
    let places = waiting(&mut admin).await;
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert_eq!(waiting(&mut admin).await, places, "a place was lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut last = holder.token().unwrap();
    holder.release().await.unwrap();
    for wanted in 0..5 {
        let (i, token) = soon(order.recv()).await.unwrap();
        assert_eq!(i, wanted);
        assert!(token > last, "token {token} after {last}");
        last = token;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// A waiter that gives up, and one whose client is gone, leave the queue while the lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_leaves_the_queue() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let holder = a.mutex("left").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "left");
    until_waiting(&mut admin, 1).await;
    waiter.abort();
    until_waiting(&mut admin, 0).await;
    // Again and again, as in a loop: none of the places stays.
    for _ in 0..20 {
        let lock = b.mutex("left").unwrap();
        assert!(lock.acquire_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    }
    until_waiting(&mut admin, 0).await;
    // A client that dies with all its tasks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = server.port();
    runtime.spawn(async move { open(port, "").await.unwrap().mutex("left").unwrap().acquire().await });
    until_waiting(&mut admin, 1).await;
    runtime.shutdown_background();
    until_waiting(&mut admin, 0).await;
    assert!(holder.is_held());
    holder.release().await.unwrap();
    assert!(soon(b.mutex("left").unwrap().acquire()).await.unwrap().is_held());
}

/// A waiter whose machine falls silent is granted the lock in its turn, and the server takes it back after its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_waiter_holds_for_its_lease_at_most() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into(), &link).await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let silent = open(proxy.address().port(), "&ttl=2s&sslmode=disable").await.unwrap();
    let holder = a.mutex("silent").unwrap().acquire().await.unwrap();
    let _waiter = acquire(&silent, "silent");
    until_waiting(&mut admin, 1).await;
    link.set(Fault::Stall);
    let next = acquire(&b, "silent");
    until_waiting(&mut admin, 2).await;
    holder.release().await.unwrap();
    let granted = Instant::now();
    let next = soon(next).await.unwrap().unwrap();
    assert!(granted.elapsed() > Duration::from_secs(1), "the silent one was passed by");
    next.release().await.unwrap();
}

/// What the role's defaults say about time is for other work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_role_end_no_wait() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    for setting in [
        "statement_timeout = 2000",
        "lock_timeout = 2000",
        "idle_session_timeout = 10000",
        "default_transaction_read_only = on",
    ] {
        let sql = format!("ALTER ROLE onelock SET {setting}");
        admin.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
    }
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let holder = a.mutex("patient").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "patient");
    let pids = until_waiting(&mut admin, 1).await;
    tokio::time::sleep(Duration::from_millis(3000)).await;
    assert_eq!(waiting(&mut admin).await, pids);
    assert!(holder.is_held());
    holder.release().await.unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// More locks at once than connections: an error that says so, and nothing else is harmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_connections_says_so() {
    let server = start(&[]).await.unwrap();
    let locks = open(server.port(), "&connections=2&request_timeout=300ms").await.unwrap();
    let first = locks.mutex("1").unwrap().acquire().await.unwrap();
    let second = locks.mutex("2").unwrap().acquire().await.unwrap();
    for attempt in [locks.mutex("3").unwrap().try_acquire().await.map(|_| ()), {
        locks.mutex("3").unwrap().acquire().await.map(|_| ())
    }] {
        let error = attempt.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.to_string().contains("connections"), "{error}");
    }
    assert!(first.is_held() && second.is_held());
    // It waits for a connection to come free, not for nothing.
    let third = acquire(&locks, "3");
    first.release().await.unwrap();
    soon(third).await.unwrap().unwrap().release().await.unwrap();
}

/// Readers share; a writer waits for all of them, and keeps later readers from passing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let read = |locks: &Locks| locks.rwlock("shared").unwrap().read();
    let (one, two) = (read(&a).acquire().await.unwrap(), read(&b).acquire().await.unwrap());
    let shown = a.inspect("shared").await.unwrap();
    assert_eq!(shown.holders.len(), 2);
    assert!(shown.holders.iter().all(|holder| holder.mode == lock_core::Mode::Shared), "{shown:?}");
    let writer = acquire(&a, "shared");
    until_waiting(&mut admin, 1).await;
    assert!(read(&b).try_acquire().await.unwrap().is_none(), "a reader has passed the writer");
    let tokens = [one.token().unwrap(), two.token().unwrap()];
    one.release().await.unwrap();
    two.release().await.unwrap();
    let writer = soon(writer).await.unwrap().unwrap();
    assert!(tokens.iter().all(|token| writer.token().unwrap() > *token));
    assert!(read(&b).try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
}

/// A pooler that gives each transaction another session is refused, one that does not is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_of_transactions_is_refused() {
    let server: PostgresServer = start(&[]).await.unwrap();
    for settings in [&[][..], &["server_round_robin = 1"]] {
        let pooler = PgBouncer::start(server.port(), "transaction", settings).await.unwrap();
        // As somebody the pooler knows.
        let error = open_as("postgres", pooler.port(), "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let pooler = PgBouncer::start(server.port(), "session", &[]).await.unwrap();
    let locks = open_as("postgres", pooler.port(), "").await.unwrap();
    let guard = locks.mutex("pooled").unwrap().acquire().await.unwrap();
    assert!(locks.mutex("pooled").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Schemas that are not ours, or not there, are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_not_ours_is_refused() {
    let server = start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("CREATE SCHEMA theirs").await.unwrap();
    admin.execute("CREATE TABLE theirs.things (x integer)").await.unwrap();
    let error = open(server.port(), "&schema=absent").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let url = |schema: &str| {
        format!("postgres+session://postgres@127.0.0.1:{}/postgres?schema={schema}", server.port())
    };
    let open = async |url: String| {
        Locks::open(&url, &[POSTGRES_SESSION_DRIVER], Settings::default(), Arc::new(BootClock)).await
    };
    assert_eq!(open(url("theirs")).await.unwrap_err().kind(), ErrorKind::Foreign);
    // Made by whoever comes first, once.
    let (one, two) = tokio::join!(open(url("made")), open(url("made")));
    let guard = one.unwrap().mutex("x").unwrap().acquire().await.unwrap();
    assert!(two.unwrap().mutex("x").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(guard.token().unwrap().get(), 1);
}
