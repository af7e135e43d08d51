//! One client with hundreds of locks and waiters while its replies are late, lost, and let through again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onelock_conformance::faults::{Fault, Link, Proxies};
use onelock_core::{ErrorKind, Locks, Mode, Settings};

use crate::postgres_server::PostgresServer;
use crate::server::open;

const CROWD: usize = 300;

async fn client(url: &str) -> Locks {
    let mut settings = Settings::default();
    settings.ttl = Duration::from_secs(20);
    Locks::builder(Arc::new(open(url).await)).settings(settings).build().unwrap()
}

fn mode(i: usize) -> Mode {
    match i % 3 {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        _ => Mode::permit(3).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_lost_replies_cost_no_lock_and_no_place() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    let (link, proxies) = (Link::new(), Proxies::default());
    let way = proxies.way(([127, 0, 0, 1], server.port()), &link).await.unwrap();
    let by = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable&request_timeout=1s&connect_timeout=1s",
        way.port()
    );
    let (crowd, other) = (client(&by).await, client(&server.url()).await);
    let held = join_all((0..CROWD).map(|i| {
        let lock = crowd.lock(format!("held-{i}"), mode(i)).unwrap();
        async move { lock.acquire().await.unwrap() }
    }));
    let ahead = join_all((0..CROWD).map(|i| {
        let lock = other.mutex(format!("awaited-{i}")).unwrap();
        async move { lock.acquire().await.unwrap() }
    }));
    let (held, ahead) = tokio::join!(held, ahead);
    let tokens: Vec<_> = held.iter().map(|guard| guard.token().unwrap()).collect();
    let waiters: Vec<_> = (0..CROWD)
        .map(|i| {
            let lock = crowd.lock(format!("awaited-{i}"), mode(i)).unwrap();
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    let mut waiting = 0;
    for _ in 0..600 {
        waiting = 0;
        for i in 0..CROWD {
            waiting += other.inspect(format!("awaited-{i}")).await.unwrap().waiters.len();
        }
        if waiting == CROWD {
            break;
        }
    }
    assert_eq!(waiting, CROWD, "they come to wait");
    for fault in [
        Fault::Delay(Duration::from_millis(150)),
        Fault::StallReplies,
        Fault::LoseReplies,
        Fault::StallReplies,
        Fault::LoseReplies,
        Fault::Reset,
    ] {
        link.set(fault);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        link.heal();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    let lost = held.iter().filter(|guard| !guard.is_held()).count();
    assert_eq!(lost, 0, "locks were lost of which replies were late");
    for (guard, token) in held.iter().zip(&tokens) {
        assert_eq!(guard.token().unwrap(), *token);
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a waiter ended while the lock was held");
    // Each waiter is next, so the release makes it hold.
    join_all(ahead.into_iter().map(|guard| guard.release())).await.into_iter().for_each(|done| done.unwrap());
    let got = tokio::time::timeout(Duration::from_secs(60), join_all(waiters)).await.unwrap();
    for guard in got {
        guard.unwrap().unwrap().release().await.unwrap();
    }
    for guard in held {
        guard.release().await.unwrap();
    }
    for i in 0..CROWD {
        for name in [format!("held-{i}"), format!("awaited-{i}")] {
            let line = other.inspect(&name).await.unwrap();
            assert!(line.holders.is_empty() && line.waiters.is_empty(), "{name}: {line:?}");
        }
    }
}

/// Far more at once than the server carries out within the time for a request, and within a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_joins_waits_for_its_turn() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    let url = format!("{}?durability=relaxed&connections=2&request_timeout=1s", server.url());
    let mut settings = Settings::default();
    settings.ttl = Duration::from_secs(2);
    let locks = Locks::builder(Arc::new(open(&url).await)).settings(settings).build().unwrap();
    let begun = Instant::now();
    let mut round = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let cycles = (0..5_000).map(|i| {
            let lock = locks.mutex(format!("free-{round}-{i}")).unwrap();
            async move { lock.acquire().await?.release().await }
        });
        let outcomes = join_all(cycles).await;
        let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        // A slow machine may answer too late time and again: one of ten, and nobody for want of a connection.
        let late = refused.iter().filter(|error| error.kind() == ErrorKind::Timeout).count();
        assert!(
            late == refused.len() && late <= 500,
            "{late} are late of {}: {:?}",
            refused.len(),
            refused.first()
        );
        round += 1;
    }
    locks.close(Duration::from_secs(60)).await.unwrap();
}
