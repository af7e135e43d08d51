//! Waiting: in the same backend, in another one, and in a long line.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use onelock_core::{Backend, BootClock, ErrorKind, Mode, Renewed, Wake};
use onelock_sql::{SqliteBackend, SqliteConfig};

use crate::support::{
    HandClock, file, folder, hold, name, open, open_with, queue, raw, release, renewal, request, until,
};

#[tokio::test]
async fn a_release_wakes_only_the_promoted() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    let [first, second, third] = [1, 2, 3].map(|holder| request("n", holder));
    hold(&store, &first).await;
    let token = queue(&store, &second).await;
    queue(&store, &third).await;
    let (second, third) = (second.ticket(), third.ticket());
    let mut promoted = Box::pin(store.wait(&second));
    let mut behind = Box::pin(store.wait(&third));
    assert!(promoted.as_mut().now_or_never().is_none() && behind.as_mut().now_or_never().is_none());
    release(&store, &first.ticket()).await;
    assert_eq!(promoted.await.unwrap(), Wake::Held(token));
    // The queue is served in order: after this answer the third would have had its wake-up.
    store.inspect(&name("n")).await.unwrap();
    assert!(behind.now_or_never().is_none());
}

#[tokio::test]
async fn a_wake_before_the_wait_is_not_lost() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    let (first, second) = (request("n", 1), request("n", 2));
    hold(&store, &first).await;
    let token = queue(&store, &second).await;
    release(&store, &first.ticket()).await;
    assert_eq!(store.wait(&second.ticket()).await.unwrap(), Wake::Held(token));
    // And again, as the wait may be dropped and made anew.
    assert_eq!(store.wait(&second.ticket()).await.unwrap(), Wake::Held(token));
    assert_eq!(store.wait(&request("n", 9).ticket()).await.unwrap(), Wake::Ask);
}

#[tokio::test]
async fn another_backend_hears_of_a_release_and_of_an_eviction() {
    let folder = folder();
    let (here, there) = (open(&file(&folder)).await, open(&file(&folder)).await);
    let [first, second, third] = [1, 2, 3].map(|holder| request("n", holder));
    hold(&here, &first).await;
    let token = queue(&there, &second).await;
    let evicted = queue(&there, &third).await;
    let (second, third) = (second.ticket(), third.ticket());
    let (mut promoted, mut gone) = (Box::pin(there.wait(&second)), Box::pin(there.wait(&third)));
    assert!(promoted.as_mut().now_or_never().is_none() && gone.as_mut().now_or_never().is_none());
    here.evict(&name("n"), evicted).await.unwrap();
    assert_eq!(gone.await.unwrap(), Wake::Ask);
    assert!(promoted.as_mut().now_or_never().is_none());
    release(&here, &first.ticket()).await;
    assert_eq!(promoted.await.unwrap(), Wake::Held(token));
}

/// With looks ten seconds apart only a notice can be in time.
#[tokio::test]
async fn another_backend_is_told_and_need_not_look() {
    let folder = folder();
    let mut rare = SqliteConfig::new(file(&folder));
    rare.poll = Duration::from_secs(1);
    let here = open(&file(&folder)).await;
    let there = SqliteBackend::open(rare, Arc::new(BootClock)).await.unwrap();
    let told = async {
        for round in 0..10 {
            let (first, second) = (request("n", 2 * round + 1), request("n", 2 * round + 2));
            hold(&here, &first).await;
            let token = queue(&there, &second).await;
            let second = second.ticket();
            let mut promoted = Box::pin(there.wait(&second));
            assert!(promoted.as_mut().now_or_never().is_none());
            release(&here, &first.ticket()).await;
            assert_eq!(promoted.await.unwrap(), Wake::Held(token));
            release(&there, &second).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.expect("ten notices within half a minute");
}

/// Somebody who tells nobody, as a process that dies after its commit, or the shell of SQLite.
#[tokio::test]
async fn what_nobody_told_is_seen_by_looking() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    hold(&store, &request("n", 1)).await;
    let second = request("n", 2);
    queue(&store, &second).await;
    let second = second.ticket();
    let mut gone = Box::pin(store.wait(&second));
    assert!(gone.as_mut().now_or_never().is_none());
    raw(&file(&folder)).execute_batch("DELETE FROM onelock_line WHERE held = 0").unwrap();
    assert_eq!(gone.await.unwrap(), Wake::Ask);
}

#[tokio::test]
async fn an_expired_predecessor_gives_way_when_the_head_asks() {
    let folder = folder();
    let clock = HandClock::new();
    let store = open_with(&file(&folder), &clock).await;
    let (first, second, third) = (request("n", 1), request("n", 2), request("n", 3));
    hold(&store, &first).await;
    clock.advance(Duration::from_secs(1));
    let token = queue(&store, &second).await;
    let last = queue(&store, &third).await;
    clock.advance(Duration::from_secs(58));
    let renewed = store.renew(&[renewal(&second), renewal(&third)]).await;
    let Ok(Renewed::Waiting(place)) = renewed[0] else { panic!("{renewed:?}") };
    assert_eq!(place.retry_after, Some(Duration::from_secs(1)));
    let Ok(Renewed::Waiting(behind)) = renewed[1] else { panic!("{renewed:?}") };
    assert_eq!((behind.token, behind.retry_after), (Some(last), None));
    clock.advance(Duration::from_secs(1));
    let Ok(Renewed::Held(grant)) = store.renew(&[renewal(&second)]).await[0] else { panic!() };
    assert_eq!(grant.token, token);
    assert!(matches!(store.renew(&[renewal(&first)]).await[0], Ok(Renewed::NotHeld)));
}

#[tokio::test]
async fn a_close_ends_every_wait_and_every_verb() {
    let folder = folder();
    let store = Arc::new(open(&file(&folder)).await);
    let (first, second) = (request("n", 1), request("n", 2));
    hold(&*store, &first).await;
    queue(&*store, &second).await;
    let waiting = tokio::spawn({
        let (store, ticket) = (store.clone(), second.ticket());
        async move { store.wait(&ticket).await }
    });
    tokio::task::yield_now().await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.acquire(&first).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.renew(&[renewal(&first)]).await[0].as_ref().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.inspect(&name("n")).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_thousand_waiters_move_up_and_are_let_in_together() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    let writer = request("n", 1);
    hold(&store, &writer).await;
    let mut readers: Vec<_> = (0..1_000).map(|i| request("n", 10 + i)).collect();
    readers.iter_mut().for_each(|reader| reader.mode = Mode::Shared);
    futures_util::future::join_all(readers.iter().map(|reader| queue(&store, reader))).await;
    let tickets: Vec<_> = readers.iter().map(onelock_core::Request::ticket).collect();
    let mut waits: Vec<_> = tickets.iter().map(|ticket| Box::pin(store.wait(ticket))).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().now_or_never().is_none());
    }
    release(&store, &writer.ticket()).await;
    for wait in waits {
        assert!(matches!(wait.await.unwrap(), Wake::Held(_)));
    }
    let seen = store.inspect(&name("n")).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1_000, 0));
    let due: Vec<_> = readers.iter().map(renewal).collect();
    assert!(store.renew(&due).await.iter().all(|r| matches!(r, Ok(Renewed::Held(_)))));
}

#[tokio::test]
async fn calls_that_are_dropped_leave_a_usable_store() {
    let folder = folder();
    let store = open(&file(&folder)).await;
    for holder in 0..200 {
        let request = request("n", 100 + holder);
        let mut call = Box::pin(store.acquire(&request));
        if call.as_mut().now_or_never().is_none() && holder % 2 == 0 {
            tokio::task::yield_now().await;
        }
        drop(call);
        // What a client owes: it does not know whether it joined.
        store.release(&request.ticket()).await.unwrap();
    }
    until("the line is empty", async || store.inspect(&name("n")).await.unwrap().holders.is_empty()).await;
    hold(&store, &request("n", 1)).await;
}

#[test]
fn the_store_outlives_the_runtime_it_was_opened_on() {
    let folder = folder();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let store = Arc::new(first.block_on(open(&file(&folder))));
    first.block_on(async {
        hold(&*store, &request("n", 1)).await;
        queue(&*store, &request("n", 2)).await;
    });
    first.spawn({
        let store = store.clone();
        async move { store.wait(&request("n", 2).ticket()).await }
    });
    drop(first);
    runtime().block_on(async {
        release(&*store, &request("n", 1).ticket()).await;
        release(&*store, &request("n", 2).ticket()).await;
        store.close().await.unwrap();
    });
}

#[tokio::test]
async fn an_evicted_and_an_expired_waiter_are_told_to_ask() {
    let folder = folder();
    let clock = HandClock::new();
    let store = open_with(&file(&folder), &clock).await;
    hold(&store, &request("n", 1)).await;
    let evicted = queue(&store, &request("n", 2)).await;
    let brief = request("n", 3).waiter_lease(Duration::from_secs(1));
    queue(&store, &brief).await;
    let (second, third) = (request("n", 2).ticket(), brief.ticket());
    let (mut second, mut third) = (Box::pin(store.wait(&second)), Box::pin(store.wait(&third)));
    assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
    store.evict(&name("n"), evicted).await.unwrap();
    assert_eq!(second.await.unwrap(), Wake::Ask);
    assert!(third.as_mut().now_or_never().is_none());
    clock.advance(Duration::from_secs(2));
    store.inspect(&name("another")).await.unwrap();
    assert_eq!(third.await.unwrap(), Wake::Ask);
}
