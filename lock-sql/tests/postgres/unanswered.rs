//! Acquires that were given up, and that the server carries out later.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onelock_conformance::faults::{Act, Link, Proxy, Trigger};
use onelock_core::Backend;
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

const PATIENCE: Duration = Duration::from_secs(60);

/// The server stalls. When it goes on it has acquires, and over other connections the releases after them, in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_come_after_their_releases_are_given_back() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let store = open(&format!("{}?request_timeout=1s&connections=32", server.url())).await;
    let all: Vec<_> = (0..16).map(|i| request(&format!("late-{i}"))).collect();
    // Connections for all are there.
    let warm: Vec<_> = (0..32).map(|i| request(&format!("warm-{i}"))).collect();
    join_all(warm.iter().map(|entry| store.acquire(entry))).await;
    join_all(warm.iter().map(async |entry| store.release(&entry.ticket()).await)).await;
    server.pause(true).unwrap();
    let end = Instant::now() + PATIENCE;
    let count = AtomicUsize::new(0);
    let given_up = all.iter().map(async |entry| {
        let error = store.acquire(entry).await.unwrap_err();
        assert!(error.is_unclear(), "{error}");
        count.fetch_add(1, Ordering::Relaxed);
        // As the core: until the answer is definite.
        while let Err(error) = store.release(&entry.ticket()).await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let goes_on = async {
        while count.load(Ordering::Relaxed) < all.len() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.pause(false).unwrap();
    };
    tokio::join!(join_all(given_up), goes_on);
    store.close().await.unwrap();
    // Each backend carries out what it was sent, and then sees that its connection is gone.
    let mut admin = server.admin().await.unwrap();
    let others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    while admin.fetch_one(others).await.unwrap().get::<i64, _>(0) > 0 {
        assert!(Instant::now() < end, "connections that do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left = admin.fetch_one("SELECT count(*) FROM onelock.line").await.unwrap();
    assert_eq!(left.get::<i64, _>(0), 0, "entries that nobody gives back");
}

/// The answer is lost with its connection, and the request is refused when it is sent again: what the first made is given back.
#[tokio::test]
async fn a_refusal_of_the_second_try_says_nothing_of_the_first() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into(), &link).await.unwrap();
    let port = proxy.address().port();
    let url = format!("postgres://app@127.0.0.1:{port}/postgres?migrate=false&sslmode=disable&connections=1");
    let store = open(&url).await;
    // Sessions that begin from now on.
    let mut admin = server.admin().await.unwrap();
    admin.execute("ALTER ROLE app SET default_transaction_read_only = on").await.unwrap();
    link.arm(Trigger { pattern: b"refused".to_vec(), nth: 1, act: Act::LoseReply });
    let entry = request("refused");
    let error = store.acquire(&entry).await.unwrap_err();
    link.struck().await;
    let left = admin.fetch_one("SELECT count(*) FROM onelock.line").await.unwrap();
    assert_eq!(left.get::<i64, _>(0), 1, "the first try made nothing: this shows nothing");
    assert!(error.is_unclear(), "nobody gives it back: {error}");
}
