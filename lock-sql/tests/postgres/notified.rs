//! Who is told what: a notification costs every commit of the database, and wakes somebody.

use std::time::Duration;

use futures_util::FutureExt as _;
use onelock_core::{Backend, Mode, Request, Standing, Wake};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

/// Hears what a client's channel is told.
async fn eavesdrop(server: &PostgresServer) -> PgListener {
    let mut admin = server.admin().await.unwrap();
    let rows = admin.fetch_all("SELECT DISTINCT inbox FROM onelock.line").await.unwrap();
    let channels: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    let mut listener = PgListener::connect_with(&pool).await.unwrap();
    for channel in &channels {
        assert!(channel.starts_with("onelock_"), "the entry names no channel: {channel:?}");
        listener.listen(channel).await.unwrap();
    }
    listener
}

/// How many notifications came until one that is sent now.
async fn heard(server: &PostgresServer, listener: &mut PgListener) -> usize {
    let mut admin = server.admin().await.unwrap();
    admin
        .execute("SELECT pg_notify(inbox, 'end') FROM (SELECT min(inbox) AS inbox FROM onelock.line) AS l")
        .await
        .unwrap();
    let mut heard = 0;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(30), listener.recv()).await;
        match next.unwrap().unwrap().payload() {
            "end" => return heard,
            _ => heard += 1,
        }
    }
}

/// A commit that has a notification fails where their queue is full: none is sent without a look at it. (To fill it takes 8 GB on
/// servers before version 17.)
#[tokio::test]
async fn no_notification_fails_a_commit() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let sql = "SELECT coalesce(string_agg(proname, ' '), '') FROM pg_proc WHERE pronamespace = 'onelock'::regnamespace \
               AND prosrc LIKE '%pg_notify(%' AND prosrc NOT LIKE '%pg_notification_queue_usage() < %'";
    let careless: String = server.admin().await.unwrap().fetch_one(sql).await.unwrap().get(0);
    assert_eq!(careless, "");
}

#[tokio::test]
async fn nothing_is_told_where_nobody_was_promoted() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let store = open(&server.url()).await;
    let keep = request("kept");
    assert!(matches!(store.acquire(&keep).await.unwrap(), Standing::Held(_)));
    let mut listener = eavesdrop(&server).await;
    for _ in 0..20 {
        let one = request("free");
        assert!(matches!(store.acquire(&one).await.unwrap(), Standing::Held(_)));
        let busy = request("free").queue(false);
        assert!(matches!(store.acquire(&busy).await.unwrap(), Standing::Busy(_)));
        // A waiter that leaves promotes nobody.
        let waiter = request("free");
        assert!(matches!(store.acquire(&waiter).await.unwrap(), Standing::Waiting(_)));
        store.release(&waiter.ticket()).await.unwrap();
        store.inspect(&one.name).await.unwrap();
        store.release(&one.ticket()).await.unwrap();
    }
    assert_eq!(heard(&server, &mut listener).await, 0);
    // The measure itself: one waiter promoted, one notification.
    let waiter = request("kept");
    assert!(matches!(store.acquire(&waiter).await.unwrap(), Standing::Waiting(_)));
    store.release(&keep.ticket()).await.unwrap();
    assert_eq!(heard(&server, &mut listener).await, 1);
}

/// A hundred releases with two hundred waiters: each tells the one waiter that holds then, and only that one wakes. At
/// the end a release that lets several readers in tells each of them once.
#[tokio::test]
async fn only_the_promoted_are_woken() {
    let server = PostgresServer::start(&["synchronous_commit=off"]).await.unwrap();
    let store = open(&server.url()).await;
    let first = request("n");
    assert!(matches!(store.acquire(&first).await.unwrap(), Standing::Held(_)));
    let mut line = vec![first];
    let mut tokens = Vec::new();
    for i in 0..200 {
        let mode = if i < 190 { Mode::Exclusive } else { Mode::Shared };
        let mut waiter = request("n");
        waiter.mode = mode;
        let Standing::Waiting(place) = store.acquire(&waiter).await.unwrap() else { panic!() };
        tokens.push(place.token.unwrap());
        line.push(waiter);
    }
    let mut listener = eavesdrop(&server).await;
    let tickets: Vec<_> = line[1..].iter().map(Request::ticket).collect();
    let mut waits: Vec<_> = tickets.iter().map(|ticket| Box::pin(store.wait(ticket))).collect();
    let asked = server.requests().unwrap();
    for release in 0..100 {
        store.release(&line[release].ticket()).await.unwrap();
        assert_eq!(waits[release].as_mut().await.unwrap(), Wake::Held(tokens[release]));
        for (i, wait) in waits.iter_mut().enumerate().skip(release + 1) {
            assert!(wait.as_mut().now_or_never().is_none(), "release {release} woke waiter {i}");
        }
    }
    assert_eq!(heard(&server, &mut listener).await, 100, "notifications for 100 releases");
    assert_eq!(server.requests().unwrap() - asked, 100, "requests for 100 releases");
    for waiter in &line[100..190] {
        store.release(&waiter.ticket()).await.unwrap();
    }
    assert_eq!(heard(&server, &mut listener).await, 90);
    store.release(&line[190].ticket()).await.unwrap();
    assert_eq!(heard(&server, &mut listener).await, 10, "one for each reader");
    for (wait, token) in waits.iter_mut().zip(&tokens).skip(190) {
        assert_eq!(wait.as_mut().await.unwrap(), Wake::Held(*token));
    }
}

/// A grant of an entry is none of the next one of its holder.
#[tokio::test]
async fn a_grant_of_an_earlier_entry_is_none_of_the_next_one() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let (first, twice, second) = (request("n"), request("n"), request("n"));
    assert!(matches!(other.acquire(&first).await.unwrap(), Standing::Held(_)));
    let Standing::Waiting(place) = store.acquire(&twice).await.unwrap() else { panic!() };
    let before = place.token.unwrap();
    other.release(&first.ticket()).await.unwrap();
    assert_eq!(store.wait(&twice.ticket().token(before)).await.unwrap(), Wake::Held(before));
    assert!(matches!(other.acquire(&second).await.unwrap(), Standing::Waiting(_)));
    other.evict(&twice.name, before).await.unwrap();
    let Standing::Waiting(place) = store.acquire(&twice).await.unwrap() else { panic!() };
    let (ticket, end) = (twice.ticket().token(place.token.unwrap()), Duration::from_millis(500));
    let mut wakes = Vec::new();
    while let Ok(wake) = tokio::time::timeout(end, store.wait(&ticket)).await {
        wakes.push(wake.unwrap());
        assert!(wakes.len() < 5, "woken again and again, while another one holds: {wakes:?}");
    }
    assert!(!wakes.iter().any(|wake| matches!(wake, Wake::Held(_))), "{wakes:?}");
}

/// A wait may be dropped at any time: the next one misses no notification.
#[tokio::test]
async fn a_wait_that_is_dropped_misses_no_grant() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let (first, second) = (request("n"), request("n"));
    assert!(matches!(other.acquire(&first).await.unwrap(), Standing::Held(_)));
    let Standing::Waiting(place) = other.acquire(&second).await.unwrap() else { panic!() };
    let ticket = second.ticket().token(place.token.unwrap());
    // From here on this client is notified.
    let due = onelock_core::Renewal::new(ticket.clone(), second.lease, second.waiter_lease);
    store.renew(&[due]).await.remove(0).unwrap();
    other.release(&first.ticket()).await.unwrap();
    // On a busy machine the answer may be there at the first poll.
    let mut wake = store.wait(&ticket).now_or_never();
    if wake.is_none() {
        wake = tokio::time::timeout(Duration::from_secs(60), store.wait(&ticket)).await.ok();
    }
    assert_eq!(wake.expect("it holds").unwrap(), Wake::Held(place.token.unwrap()));
}
