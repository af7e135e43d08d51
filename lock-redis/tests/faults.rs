//! Servers that stop, die and come back; pushes that get lost.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Server, held, name, renew_one, request, soon, told, waits};
use futures_util::poll;
use onelock_conformance::faults::{Act, Link, Proxy, Trigger};
use onelock_core::{Backend, ErrorKind, Locks, Release, Renewed, Wake};
use onelock_redis::{RedisBackend, RedisConfig};

#[tokio::test]
async fn a_lost_connection_makes_every_waiter_ask_and_the_next_push_arrive() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let (first, second, third) = (request("a", "x"), request("a", "x"), request("a", "x"));
    held(backend.acquire(&first).await.unwrap());
    waits(backend.acquire(&second).await.unwrap());
    waits(backend.acquire(&third).await.unwrap());
    raw.run("CLIENT KILL TYPE pubsub").await;
    // Nobody sends anything: the client notices, says so and connects again.
    for waiter in [&second, &third] {
        let lost = soon(backend.wait(&waiter.ticket())).await.unwrap_err();
        assert_eq!((lost.kind(), lost.is_retryable()), (ErrorKind::Unavailable, true), "{lost}");
        assert_eq!(soon(backend.wait(&waiter.ticket())).await.unwrap(), Wake::Ask);
    }
    assert!(matches!(renew_one(&*backend, &second.ticket()).await, Ok(Renewed::Waiting(_))));
    backend.release(&first.ticket()).await.unwrap();
    assert!(matches!(soon(backend.wait(&second.ticket())).await.unwrap(), Wake::Held(_)));
}

/// What a fail-over does whose new master is there at once: it has lost the entries, and no call has failed.
#[tokio::test]
async fn a_waiter_whose_entry_went_with_its_connection_joins_again() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    held(backend.acquire(&request("a", "x")).await.unwrap());
    let locks = Locks::builder(server.backend().await).build().unwrap();
    let lock = locks.mutex("a").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let name = name("a");
    soon(async { while backend.inspect(&name).await.unwrap().waiters.is_empty() {} }).await;
    for line in ["MULTI", "FLUSHALL", "CLIENT KILL TYPE pubsub", "EXEC"] {
        raw.run(line).await;
    }
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_restart_without_data_is_survived() {
    let mut server = Server::start(&[]).await;
    let backend = server.backend().await;
    assert!(!backend.capabilities().durable);
    let (first, second) = (request("a", "x"), request("a", "x"));
    held(backend.acquire(&first).await.unwrap());
    waits(backend.acquire(&second).await.unwrap());
    server.restart().await;
    assert_eq!(told(&*backend, &second.ticket()).await, Wake::Ask);
    assert_eq!(renew_one(&*backend, &second.ticket()).await.unwrap(), Renewed::NotHeld);
    held(backend.acquire(&request("a", "x")).await.unwrap());
}

#[tokio::test]
async fn a_restart_with_data_keeps_the_line_and_its_numbers() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let backend = server.backend().await;
    assert!(backend.capabilities().durable);
    let (first, second) = (request("a", "x"), request("a", "x"));
    let old = held(backend.acquire(&first).await.unwrap());
    waits(backend.acquire(&second).await.unwrap());
    server.restart().await;
    let until = Instant::now() + PATIENCE;
    let wake = loop {
        match soon(backend.wait(&second.ticket())).await {
            // The client has met the server while it was loading its data.
            Err(error) if error.is_retryable() && Instant::now() < until => {}
            wake => break wake.unwrap(),
        }
    };
    assert_eq!(wake, Wake::Ask);
    assert!(matches!(renew_one(&*backend, &second.ticket()).await, Ok(Renewed::Waiting(_))));
    assert!(
        matches!(renew_one(&*backend, &first.ticket()).await, Ok(Renewed::Held(g)) if g.token == old.token)
    );
    assert_eq!(backend.release(&first.ticket()).await.unwrap(), Release::Released);
    let Wake::Held(new) = soon(backend.wait(&second.ticket())).await.unwrap() else { panic!("no grant") };
    assert!(new > old.token);
}

#[tokio::test]
async fn a_frozen_server_is_a_timeout_and_then_a_new_connection() {
    let server = Server::start(&[]).await;
    let mut config = server.config();
    config.request_timeout = Duration::from_millis(300);
    config.connect_timeout = Duration::from_millis(300);
    let backend = RedisBackend::connect(config).await.unwrap();
    let ask = request("a", "x");
    server.signal("-STOP");
    let error = soon(backend.acquire(&ask)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Timeout, true));
    let error = soon(backend.release(&ask.ticket())).await.unwrap_err();
    // No new connection came up, so this one was not even sent.
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Unavailable, false));
    server.signal("-CONT");
    // What was sent may still be done: only a definite answer cleans up.
    soon(async { while backend.release(&ask.ticket()).await.is_err() {} }).await;
    let mut raw = server.raw().await;
    soon(async {
        while !raw.residue().await.is_empty() {
            let _ = backend.release(&ask.ticket()).await;
        }
    })
    .await;
}

/// The network keeps the request, and the release overtakes it over the next connection.
#[tokio::test]
async fn an_acquire_that_comes_after_its_release_is_given_back() {
    let server = Server::start(&[]).await;
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port).into(), &link).await.unwrap();
    let mut config = RedisConfig::new("127.0.0.1", proxy.address().port());
    config.request_timeout = Duration::from_millis(500);
    let backend = RedisBackend::connect(config).await.unwrap();
    let ask = request("late", "x");
    let pattern = ask.holder.to_hex().into_bytes();
    link.arm(Trigger { pattern, nth: 1, act: Act::HoldRequest });
    let error = backend.acquire(&ask).await.unwrap_err();
    assert!(error.is_unclear(), "{error}");
    let mut released = backend.release(&ask.ticket()).await;
    link.let_go();
    let mut raw = server.raw().await;
    soon(async { while raw.residue().await.is_empty() {} }).await;
    // As the core: until the answer is definite.
    soon(async {
        while released.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            released = backend.release(&ask.ticket()).await;
        }
    })
    .await;
    assert_eq!(raw.residue().await, Vec::<String>::new(), "nobody gives it back: {released:?}");
}

/// An acquire connects while its client is closed: it sends nothing afterwards, since nobody would release it.
#[tokio::test]
async fn an_acquire_that_outlives_its_client_takes_nothing() {
    let server = Server::start(&[]).await;
    let mut config = server.config();
    (config.connect_timeout, config.request_timeout) = (PATIENCE, Duration::from_millis(500));
    let backend = RedisBackend::connect(config).await.unwrap();
    server.signal("-STOP");
    // This one ends the connection, and is the only one that was sent.
    let first = request("first", "x");
    soon(backend.acquire(&first)).await.unwrap_err();
    let ask = request("closing", "x");
    let mut acquire = backend.acquire(&ask);
    assert!(poll!(&mut acquire).is_pending());
    backend.close().await.unwrap();
    server.signal("-CONT");
    let error = soon(acquire).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Closed, false), "{error}");
}

#[tokio::test]
async fn an_unreachable_server_is_said_within_a_bound_and_found_again() {
    let mut server = Server::start(&[]).await;
    let backend = server.backend().await;
    server.signal("-KILL");
    let error = soon(backend.acquire(&request("a", "x"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Either the connection broke under it, or there was none any more: then nothing is owed for it.
    soon(async {
        loop {
            let Err(error) = backend.acquire(&request("a", "x")).await else {
                panic!("a dead server answered")
            };
            if !error.is_unclear() {
                break;
            }
        }
    })
    .await;
    assert!(error.is_retryable() && error.to_string().contains("redis://127.0.0.1:"), "{error}");
    // Attempts to connect are ever further apart, however often callers ask: 10, 20 and 40 ms at the least.
    let begun = Instant::now();
    for _ in 0..3 {
        soon(backend.acquire(&request("a", "x"))).await.unwrap_err();
    }
    assert!(begun.elapsed() >= Duration::from_millis(70), "three attempts within {:?}", begun.elapsed());
    let nowhere = RedisBackend::connect(server.config());
    assert_eq!(soon(nowhere).await.unwrap_err().kind(), ErrorKind::Unavailable);
    server.restart_dead().await;
    soon(async { while backend.acquire(&request("a", "x")).await.is_err() {} }).await;
}

/// Each refusal ends the connection, since its name may lead elsewhere by then, and makes every waiter ask over the next one.
#[tokio::test]
async fn a_server_that_takes_no_writes_is_not_connected_to_in_a_loop() {
    let server = Server::start(&["--replica-serve-stale-data", "no"]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let (first, second) = (request("a", "x"), request("a", "x"));
    held(backend.acquire(&first).await.unwrap());
    waits(backend.acquire(&second).await.unwrap());
    for (said, begins, ends) in [
        ("NOREPLICAS", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("MASTERDOWN", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ] {
        raw.run(begins).await;
        let begun = Instant::now();
        for _ in 0..5 {
            let refused = renew_one(&*backend, &second.ticket()).await.unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
            assert_eq!(told(&*backend, &second.ticket()).await, Wake::Ask);
        }
        // As between attempts that fail: 10, 20, 40 and 80 ms at the least.
        assert!(begun.elapsed() >= Duration::from_millis(150), "5 connections within {:?}", begun.elapsed());
        raw.run(ends).await;
        assert!(matches!(renew_one(&*backend, &second.ticket()).await, Ok(Renewed::Waiting(_))));
    }
}

#[tokio::test]
async fn a_replica_is_not_a_place_for_locks() {
    let server = Server::start(&[]).await;
    server.raw().await.run("REPLICAOF 127.0.0.1 1").await;
    let error = RedisBackend::connect(server.config()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
}
