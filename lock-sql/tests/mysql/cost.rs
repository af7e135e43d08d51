//! Requests and connections, counted on the wire.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{Backend, Mode, Renewal, Wake};

use crate::mysql_server::MariaDb;
use crate::mysql_server::counter::Counter;
use crate::support::{LONG, config, held, name, request, ticket, waiting};
use lock_sql::MySqlBackend;

async fn counted(server: &MariaDb, options: &str) -> (Counter, MySqlBackend) {
    let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    // What is encrypted cannot be counted.
    let url = format!("mysql://root@127.0.0.1:{}/locks?tls=off{options}", counter.port());
    (counter, MySqlBackend::connect(config(&url)).await.unwrap())
}

/// Every verb is one request, a batch of renewals too, with blocks and without.
#[tokio::test]
async fn each_verb_is_one_request() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "&blocks=false"] {
        let (counter, store) = counted(&server, options).await;
        let first = request("a", Mode::Exclusive);
        let mut before = counter.verbs();
        let mut cost = |what: &str, most: u64| {
            let now = counter.verbs();
            assert_eq!(now - before, most, "{what} {options}");
            before = now;
        };
        let grant = held(&store, &first).await;
        cost("acquire", 1);
        let second = request("a", Mode::Exclusive);
        waiting(&store, &second).await;
        cost("join", 1);
        store.acquire(&lock_core::Request { queue: false, ..request("a", Mode::Shared) }).await.unwrap();
        cost("busy try", 1);
        let due = |r: &lock_core::Request| Renewal { ticket: r.ticket(), lease: LONG, waiter_lease: LONG };
        assert!(store.renew(&[due(&first), due(&second)]).await.iter().all(Result::is_ok));
        cost("renewals", 1);
        store.raise(&ticket(&first, grant.token), grant.token).await.unwrap();
        cost("raise", 1);
        store.inspect(&name("a")).await.unwrap();
        cost("inspect", 1);
        store.evict(&name("a"), grant.token).await.unwrap();
        cost("evict", 1);
        store.release(&second.ticket()).await.unwrap();
        cost("release", 1);
        store.close().await.unwrap();
    }
}

/// A thousand held locks and a thousand waiters on one client: a handful of connections.
#[tokio::test]
async fn many_locks_and_waiters_share_a_few_connections() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (counter, store) = counted(&server, "&pool=4").await;
    let store = Arc::new(store);
    let locks: Vec<_> = (0..500).map(|i| request(&format!("lock-{i}"), Mode::Exclusive)).collect();
    join_all(locks.iter().map(|lock| held(&*store, lock))).await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..500 {
        let entry = request(&format!("lock-{}", i % 100), Mode::Exclusive);
        let place = waiting(&*store, &entry).await;
        let (store, ticket) = (Arc::clone(&store), ticket(&entry, place.token));
        tasks.spawn(async move { (store.wait(&ticket).await, ticket.token) });
    }
    assert!(counter.counts().open.load(Ordering::SeqCst) <= 5, "{:?}", counter.counts());
    // Each of the hundred first waiters is woken with its grant, and nobody else.
    for lock in &locks[..100] {
        store.release(&lock.ticket()).await.unwrap();
    }
    for _ in 0..100 {
        let (wake, token) = tokio::time::timeout(LONG, tasks.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(wake.unwrap(), Wake::Held(token.unwrap()));
    }
    assert_eq!(tasks.len(), 400);
    assert!(counter.counts().open.load(Ordering::SeqCst) <= 5, "{:?}", counter.counts());
    store.close().await.unwrap();
    while let Some(done) = tasks.join_next().await {
        assert_eq!(done.unwrap().0.unwrap_err().kind(), lock_core::ErrorKind::Closed);
    }
}

/// However many wait, one look serves them all, and looks come no more often than `poll` says while nothing moves.
#[tokio::test]
async fn looks_are_bounded() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (counter, store) = counted(&server, "&poll=50ms").await;
    let store = Arc::new(store);
    held(&*store, &request("busy", Mode::Exclusive)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let entry = request("busy", Mode::Exclusive);
        let place = waiting(&*store, &entry).await;
        let (store, ticket) = (Arc::clone(&store), ticket(&entry, place.token));
        tasks.spawn(async move { store.wait(&ticket).await });
    }
    let looks = || counter.counts().looks.load(Ordering::SeqCst);
    // Looks become rarer by and by; two of the same second are then at most 20 apart.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, since) = (looks(), std::time::Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (seen, most) = (looks() - before, since.elapsed().as_millis() as u64 / 50 + 2);
    assert!((1..=most).contains(&seen), "{seen} looks, at most {most}");
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    // With nobody waiting there is nothing to look at.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = looks();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(looks(), before);
}

/// A release by this client wakes its own next waiter before it returns: no look is needed.
#[tokio::test]
async fn hand_over_inside_a_client_waits_for_no_look() {
    let server = MariaDb::start(&[]).await.unwrap();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap()] {
        let (_counter, store) = counted(&server, "&poll=1s").await;
        let first = request("handed", Mode::Exclusive);
        held(&store, &first).await;
        let second = request("handed", mode);
        let token = waiting(&store, &second).await.token;
        let second = ticket(&second, token);
        let mut wait = std::pin::pin!(store.wait(&second));
        assert!(futures_util::poll!(&mut wait).is_pending());
        store.release(&first.ticket()).await.unwrap();
        let woken = futures_util::poll!(&mut wait);
        assert!(matches!(woken, std::task::Poll::Ready(Ok(Wake::Held(t))) if t == token), "{woken:?}");
        store.release(&second).await.unwrap();
        store.close().await.unwrap();
    }
}
