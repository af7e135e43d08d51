//! The queue of the server, and who must leave it.

use std::time::{Duration, Instant};

use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_core::{ErrorKind, FencingToken, Locks};

use crate::server::{Server, acquire, open, soon, until_waiting};

/// A client's process: it dies with all its tasks.
fn process() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Those who wait are served in the order in which they came, each by one session from the first moment to the last.
pub(crate) async fn the_queue_keeps_its_order_and_its_places(server: &impl Server) {
    let (a, b) = (server.open("").await, server.open("").await);
    // The wait lasts for longer than its lease, and for several renewals.
    let c = server.open("&ttl=5s").await;
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
        until_waiting(server, i + 1).await;
    }
    let places = server.waiting().await;
    let end = Instant::now() + Duration::from_secs(7);
    while Instant::now() < end {
        assert_eq!(server.waiting().await, places, "a place was lost");
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
    assert_eq!(server.locks().await, Vec::<String>::new());
}

/// A client that was used on another runtime, too, goes on when that one has ended.
pub(crate) async fn a_runtime_that_ends_takes_nothing_with_it<S: Server>(server: &S) {
    let locks = server.open("").await;
    // More at once than the client has sessions at first: some are made there.
    let cycle = async |locks: &Locks| {
        let mut guards = Vec::new();
        for i in 0..3 {
            guards.push(locks.mutex(format!("passing-{i}")).unwrap().acquire().await.unwrap());
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
    };
    for _ in 0..3 {
        let passing = locks.clone();
        let there = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(cycle(&passing));
        };
        soon(tokio::task::spawn_blocking(there)).await.unwrap();
        soon(cycle(&locks)).await;
    }
}

/// A waiter that gives up, and one whose client is gone, leave the queue while the lock is held.
pub(crate) async fn who_gives_up_leaves_the_queue<S: Server>(server: &S) {
    let (a, b) = (server.open("").await, server.open("").await);
    let holder = a.mutex("left").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "left");
    until_waiting(server, 1).await;
    waiter.abort();
    until_waiting(server, 0).await;
    // Again and again, as in a loop: none of the places stays.
    for _ in 0..20 {
        let lock = b.mutex("left").unwrap();
        match lock.acquire_timeout(Duration::from_millis(30)).await {
            Ok(got) => assert!(got.is_none()),
            // A busy server has not answered the first try within the time.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{error}"),
        }
    }
    until_waiting(server, 0).await;
    let (client, url) = (process(), S::url_at(server.at(), ""));
    client.spawn(async move { open::<S>(&url).await.unwrap().mutex("left").unwrap().acquire().await });
    until_waiting(server, 1).await;
    client.shutdown_background();
    until_waiting(server, 0).await;
    assert!(holder.is_held());
    holder.release().await.unwrap();
    assert!(soon(b.mutex("left").unwrap().acquire()).await.unwrap().is_held());
}

/// A holder whose client dies is gone at once, long before its lease.
pub(crate) async fn a_dead_holder_is_gone_at_once<S: Server>(server: &S) {
    let next = server.open("&ttl=10m").await;
    let (client, url) = (process(), S::url_at(server.at(), "&ttl=10m"));
    let (tell, told) = tokio::sync::oneshot::channel();
    client.spawn(async move {
        let locks = open::<S>(&url).await.unwrap();
        let guard = locks.mutex("dead").unwrap().acquire().await.unwrap();
        tell.send(guard.token().unwrap()).unwrap();
        std::future::pending::<()>().await;
    });
    let dead = soon(told).await.unwrap();
    assert!(next.mutex("dead").unwrap().try_acquire().await.unwrap().is_none());
    let waiter = acquire(&next, "dead");
    until_waiting(server, 1).await;
    client.shutdown_background();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(guard.token().unwrap() > dead);
}

/// A waiter whose machine falls silent is granted the lock in its turn, and the server takes it back after its lease.
pub(crate) async fn a_silent_waiter_holds_for_its_lease_at_most<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let (a, b) = (server.open("").await, server.open("").await);
    let silent = open::<S>(&S::url_at(proxy.address().port(), "&ttl=2s")).await.unwrap();
    let holder = a.mutex("silent").unwrap().acquire().await.unwrap();
    let _waiter = acquire(&silent, "silent");
    until_waiting(server, 1).await;
    link.set(Fault::Stall);
    let next = acquire(&b, "silent");
    until_waiting(server, 2).await;
    holder.release().await.unwrap();
    let granted = Instant::now();
    let next = soon(next).await.unwrap().unwrap();
    assert!(granted.elapsed() > Duration::from_secs(1), "the silent one was passed by");
    next.release().await.unwrap();
}

/// What the server's defaults for this user say about time is for other work: a wait goes on over `limit`, the longest
/// of them, and over what `meanwhile` does.
pub(crate) async fn no_setting_ends_a_wait(
    server: &impl Server,
    limit: Duration,
    meanwhile: impl Future<Output = ()>,
) {
    let (a, b) = (server.open("").await, server.open("").await);
    let holder = a.mutex("patient").unwrap().acquire().await.unwrap();
    let waiter = acquire(&b, "patient");
    let sessions = until_waiting(server, 1).await;
    tokio::time::sleep(limit + Duration::from_secs(1)).await;
    assert_eq!(server.waiting().await, sessions);
    assert!(holder.is_held());
    meanwhile.await;
    assert_eq!(server.waiting().await, sessions);
    holder.release().await.unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// More locks at once than connections: an error that says so, and nothing else is harmed.
pub(crate) async fn a_client_without_connections_says_so(server: &impl Server) {
    let locks = server.open("&connections=2&request_timeout=1s").await;
    let first = locks.mutex("1").unwrap().acquire().await.unwrap();
    let second = locks.mutex("2").unwrap().acquire().await.unwrap();
    let tried = locks.mutex("3").unwrap().try_acquire().await.map(|_| ());
    let acquired = locks.mutex("3").unwrap().acquire().await.map(|_| ());
    for error in [tried.unwrap_err(), acquired.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.to_string().contains("connections"), "{error}");
    }
    assert!(first.is_held() && second.is_held());
    // It waits for a connection to come free, not for nothing.
    let third = acquire(&locks, "3");
    first.release().await.unwrap();
    soon(third).await.unwrap().unwrap().release().await.unwrap();
}

/// What is missing at `url` is made by whoever comes first, once: two who come together meet there. Gives the first, with
/// its first number.
pub(crate) async fn made_once<S: Server>(url: &str) -> (Locks, FencingToken) {
    let (one, two) = tokio::join!(open::<S>(url), open::<S>(url));
    let (one, two) = (one.unwrap(), two.unwrap());
    let guard = one.mutex("x").unwrap().acquire().await.unwrap();
    assert!(two.mutex("x").unwrap().try_acquire().await.unwrap().is_none());
    let first = guard.token().unwrap();
    guard.release().await.unwrap();
    (one, first)
}
