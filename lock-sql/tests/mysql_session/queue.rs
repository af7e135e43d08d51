//! The queue of the server, and who must leave it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_conformance::faults::{Fault, Link, Proxy};
use lock_core::{BootClock, ErrorKind, Guard, Locks, Release, Result, Settings};
use lock_sql::MYSQL_SESSION_DRIVER;

use crate::harness::{locks, start};
use crate::mysql_server::{Admin as _, MariaDb};

/// Far more than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn open(port: u16, rest: &str) -> Result<Locks> {
    open_url(&format!("mysql+session://locker@127.0.0.1:{port}/locks?tls=off{rest}")).await
}

async fn open_url(url: &str) -> Result<Locks> {
    Locks::open(url, &[MYSQL_SESSION_DRIVER], Settings::default(), Arc::new(BootClock)).await
}

/// The sessions that wait for a lock.
async fn waiting(server: &MariaDb) -> Vec<String> {
    let sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' ORDER BY ID";
    server.texts(sql).await.unwrap()
}

async fn until_waiting(server: &MariaDb, count: usize) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sessions = waiting(server).await;
        if sessions.len() == count {
            return sessions;
        }
        assert!(Instant::now() < end, "{} sessions wait, not {count}", sessions.len());
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
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    // A quarter of its lease is how long a call waits: the wait lasts for several.
    let c = open(server.port(), "&ttl=2s").await.unwrap();
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
        until_waiting(&server, i + 1).await;
    }
    let places = waiting(&server).await;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(waiting(&server).await, places, "a place was lost");
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
    assert_eq!(locks(&server).await.unwrap(), Vec::<String>::new());
}

/// A waiter that gives up, and one whose client is gone, leave the queue while the lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_leaves_the_queue() {
    let server = start(&[]).await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let holder = a.mutex("left").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "left");
    until_waiting(&server, 1).await;
    waiter.abort();
    until_waiting(&server, 0).await;
    // Again and again, as in a loop: none of the places stays.
    for _ in 0..10 {
        let lock = b.mutex("left").unwrap();
        assert!(lock.acquire_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    }
    until_waiting(&server, 0).await;
    // A client that dies with all its tasks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = server.port();
    runtime.spawn(async move { open(port, "").await.unwrap().mutex("left").unwrap().acquire().await });
    until_waiting(&server, 1).await;
    runtime.shutdown_background();
    until_waiting(&server, 0).await;
    assert!(holder.is_held());
    holder.release().await.unwrap();
    assert!(soon(b.mutex("left").unwrap().acquire()).await.unwrap().is_held());
}

/// A holder whose client dies is gone at once, long before its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_is_gone_at_once() {
    let server = start(&[]).await.unwrap();
    let next = open(server.port(), "&ttl=10m").await.unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = server.port();
    let (tell, told) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        let locks = open(port, "&ttl=10m").await.unwrap();
        let guard = locks.mutex("dead").unwrap().acquire().await.unwrap();
        tell.send(guard.token().unwrap()).unwrap();
        std::future::pending::<()>().await;
    });
    let dead = soon(told).await.unwrap();
    assert!(next.mutex("dead").unwrap().try_acquire().await.unwrap().is_none());
    let waiter = acquire(&next, "dead");
    until_waiting(&server, 1).await;
    runtime.shutdown_background();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(guard.token().unwrap() > dead);
}

/// A waiter whose machine falls silent is granted the lock in its turn, and the server takes it back after its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_waiter_holds_for_its_lease_at_most() {
    let server = start(&[]).await.unwrap();
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into(), &link).await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let silent = open(proxy.address().port(), "&ttl=2s").await.unwrap();
    let holder = a.mutex("silent").unwrap().acquire().await.unwrap();
    let _waiter = acquire(&silent, "silent");
    until_waiting(&server, 1).await;
    link.set(Fault::Stall);
    let next = acquire(&b, "silent");
    until_waiting(&server, 2).await;
    holder.release().await.unwrap();
    let granted = Instant::now();
    let next = soon(next).await.unwrap().unwrap();
    assert!(granted.elapsed() > Duration::from_secs(1), "the silent one was passed by");
    next.release().await.unwrap();
}

/// What the server's defaults say about time is for other work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_server_end_no_wait() {
    let limit = match lock_conformance::servers::mariadb::mysqld() {
        None => "--max-statement-time=2",
        Some(_) => "--max-execution-time=2000",
    };
    let settings = ["--wait-timeout=3", "--lock-wait-timeout=2", limit, "--autocommit=0"];
    let server = start(&settings).await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    let holder = a.mutex("patient").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "patient");
    let sessions = until_waiting(&server, 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(waiting(&server).await, sessions);
    assert!(holder.is_held());
    // Nor do they stand in the way of a backup: it would wait for statements that have a table open.
    let backup = "SET SESSION lock_wait_timeout = 20; FLUSH TABLES WITH READ LOCK; UNLOCK TABLES";
    server.run(backup).await.unwrap();
    assert_eq!(waiting(&server).await, sessions);
    holder.release().await.unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// More locks at once than connections: an error that says so, and nothing else is harmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_connections_says_so() {
    let server = start(&[]).await.unwrap();
    let locks = open(server.port(), "&connections=2&request_timeout=1s").await.unwrap();
    let first = locks.mutex("1").unwrap().acquire().await.unwrap();
    let second = locks.mutex("2").unwrap().acquire().await.unwrap();
    let error = locks.mutex("3").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("connections"), "{error}");
    assert!(first.is_held() && second.is_held());
    // It waits for a connection to come free, not for nothing.
    let third = acquire(&locks, "3");
    first.release().await.unwrap();
    soon(third).await.unwrap().unwrap().release().await.unwrap();
}

/// Others see who holds, with which number, and can end exactly that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_seen_and_evicted_by_its_number() {
    let server = start(&[]).await.unwrap();
    let (a, b) = (open(server.port(), "").await.unwrap(), open(server.port(), "").await.unwrap());
    assert!(b.inspect("Seen").await.unwrap().holders.is_empty());
    let guard = a.mutex("Seen").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    let seen = b.inspect("Seen").await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token], "{seen:?}");
    assert!(seen.holders[0].note.contains("of locker@"), "{seen:?}");
    // Spelled otherwise it is another lock, whatever servers say of names.
    assert!(b.inspect("seen").await.unwrap().holders.is_empty());
    let other = lock_core::FencingToken::new(token.get() + 1).unwrap();
    assert_eq!(b.evict("Seen", other).await.unwrap(), Release::NotHeld);
    assert!(a.inspect("Seen").await.unwrap().holders.len() == 1);
    assert_eq!(b.evict("Seen", token).await.unwrap(), Release::Released);
    let next = b.mutex("Seen").unwrap().try_acquire().await.unwrap().unwrap();
    assert!(next.token().unwrap() > token);
    soon(guard.lost()).await;
}

/// A table that is not ours, or not there and not to be made, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_not_ours_is_refused() {
    let server = start(&[]).await.unwrap();
    server.run("CREATE TABLE locks.theirs_session (x INT) ENGINE = MEMORY").await.unwrap();
    server.run("CREATE TABLE locks.other_session (x INT)").await.unwrap();
    let root = |prefix: &str| {
        format!("mysql+session://root@127.0.0.1:{}/locks?tls=off&table_prefix={prefix}", server.port())
    };
    for prefix in ["theirs_", "other_"] {
        assert_eq!(open_url(&root(prefix)).await.unwrap_err().kind(), ErrorKind::Foreign, "{prefix}");
    }
    let error = open(server.port(), "&table_prefix=absent_").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("mysql_session/0001.sql"), "{error}");
    // Made by whoever comes first, once; and apart from other tables' locks.
    let made = root("made_");
    let (one, two) = tokio::join!(open_url(&made), open_url(&made));
    let (one, two) = (one.unwrap(), two.unwrap());
    let guard = one.mutex("x").unwrap().acquire().await.unwrap();
    assert!(two.mutex("x").unwrap().try_acquire().await.unwrap().is_none());
    let apart = open(server.port(), "").await.unwrap();
    assert!(apart.mutex("x").unwrap().try_acquire().await.unwrap().is_some());
    assert!(guard.is_held());
}
