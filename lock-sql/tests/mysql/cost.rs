//! Requests and connections, counted on the wire.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::{Backend, Mode, Renewal, Wake};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, counted, held, name, request, ticket, waiting};

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
        store.acquire(&request("a", Mode::Shared).queue(false)).await.unwrap();
        cost("busy try", 1);
        let due = |r: &onelock_core::Request| Renewal::new(r.ticket(), LONG, LONG);
        assert!(store.renew(&[due(&first), due(&second)]).await.iter().all(Result::is_ok));
        cost("renewals", 1);
        store.raise(&ticket(&first, grant.token), grant.token).await.unwrap();
        cost("raise", 1);
        store.inspect(&name("a")).await.unwrap();
        cost("inspect", 1);
        store.evict(&name("a"), grant.token).await.unwrap();
        cost("evict", 2);
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
        let (store, ticket) = (Arc::clone(&store), ticket(&entry, place.token.unwrap()));
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
        assert_eq!(done.unwrap().0.unwrap_err().kind(), onelock_core::ErrorKind::Closed);
    }
}

/// However many wait, one poll serves them all, and polls come no more often than `poll` says while nothing moves, and
/// more rarely when there are many lines to ask for.
#[tokio::test]
async fn polls_are_bounded() {
    let server = MariaDb::start(&[]).await.unwrap();
    for (lines, least_millis) in [(1_u64, 50), (600, 60)] {
        let (counter, store) = counted(&server, "&poll=50ms").await;
        let store = Arc::new(store);
        for i in 0..lines {
            held(&*store, &request(&format!("busy-{lines}-{i}"), Mode::Exclusive)).await;
        }
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..lines.max(50) {
            let entry = request(&format!("busy-{lines}-{}", i % lines), Mode::Exclusive);
            let place = waiting(&*store, &entry).await;
            let (store, ticket) = (Arc::clone(&store), ticket(&entry, place.token.unwrap()));
            tasks.spawn(async move { store.wait(&ticket).await });
        }
        // One request asks for so many lines.
        let requests = lines.div_ceil(512);
        let polls = || counter.counts().polls.load(Ordering::SeqCst);
        // Polls become rarer by and by.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, since) = (polls(), std::time::Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (seen, most) =
            (polls() - before, requests * (since.elapsed().as_millis() as u64 / least_millis + 2));
        assert!((1..=most).contains(&seen), "{seen} polls for {lines} lines, at most {most}");
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        // With nobody waiting there is nothing to ask for.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = polls();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(polls(), before);
    }
}

/// A poll tells those who hold, those who are gone and those who wait on from each other, in every mode, when it is made
/// for many of them at once.
#[tokio::test]
async fn a_poll_wakes_the_right_ones() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (store, other) = (Arc::new(connect(&server.url()).await), connect(&server.url()).await);
    let modes = [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap()];
    // In front of each waiter, by another client: something that does not go with it, and one more of its own mode, so
    // that an exclusive one waits on when the first leaves.
    let mut fronts = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..40_usize {
        let (on, mode) = (format!("looked-{i}"), modes[i % 4]);
        let first = request(&on, if mode == Mode::Shared { Mode::Exclusive } else { Mode::Shared });
        held(&other, &first).await;
        let second = request(&on, mode);
        waiting(&other, &second).await;
        let entry = request(&on, mode);
        let token = waiting(&*store, &entry).await.token.unwrap();
        fronts.push((first, second, entry.name.clone(), token));
        let (store, ticket) = (Arc::clone(&store), ticket(&entry, token));
        tasks.spawn(async move { (i, token, store.wait(&ticket).await.unwrap()) });
    }
    // Every third waiter is evicted; of the others the one in front leaves.
    for (i, (first, _, name, token)) in fronts.iter().enumerate() {
        if i % 3 == 0 {
            other.evict(name, *token).await.unwrap();
        } else {
            other.release(&first.ticket()).await.unwrap();
        }
    }
    let mut woken = std::collections::BTreeMap::new();
    let wakes_now = |i: usize| i.is_multiple_of(3) || !i.is_multiple_of(4);
    while woken.len() < (0..40).filter(|&i| wakes_now(i)).count() {
        let (i, token, wake) = tokio::time::timeout(LONG, tasks.join_next()).await.unwrap().unwrap().unwrap();
        assert!(wakes_now(i), "waiter {i} has another ahead: {wake:?}");
        let expected = if i % 3 == 0 { Wake::Ask } else { Wake::Held(token) };
        assert_eq!(wake, expected, "waiter {i}");
        woken.insert(i, wake);
    }
    // The exclusive ones have waited on for the second in front of them.
    for (i, (_, second, ..)) in fronts.iter().enumerate().filter(|(i, _)| !wakes_now(*i)) {
        assert!(!woken.contains_key(&i));
        other.release(&second.ticket()).await.unwrap();
    }
    while let Some(done) = tokio::time::timeout(LONG, tasks.join_next()).await.unwrap() {
        let (i, token, wake) = done.unwrap();
        assert_eq!(wake, Wake::Held(token), "waiter {i}");
    }
}

/// After a release by this client its own waiters are asked for at once: by one poll, whatever `poll` is.
#[tokio::test]
async fn hand_over_inside_a_client_is_one_poll_at_once() {
    let server = MariaDb::start(&[]).await.unwrap();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap()] {
        let (counter, store) = counted(&server, "&poll=1s").await;
        let first = request("handed", Mode::Exclusive);
        held(&store, &first).await;
        let second = request("handed", mode);
        let token = waiting(&store, &second).await.token.unwrap();
        let second = ticket(&second, token);
        let mut wait = std::pin::pin!(store.wait(&second));
        // Until pauses have become long.
        let slept = tokio::time::timeout(Duration::from_secs(3), &mut wait).await;
        assert!(slept.is_err(), "{slept:?}");
        let polls = || counter.counts().polls.load(Ordering::SeqCst);
        let before = polls();
        store.release(&first.ticket()).await.unwrap();
        let woken = tokio::time::timeout(LONG, wait).await.unwrap().unwrap();
        assert_eq!(woken, Wake::Held(token));
        // One more was due in that time, perhaps.
        assert!(polls() - before <= 2, "{} polls", polls() - before);
        store.release(&second).await.unwrap();
        store.close().await.unwrap();
    }
}

/// A client that connects does not search the names, however many there are.
#[tokio::test]
async fn connecting_costs_the_same_with_many_names() {
    let server = MariaDb::start(&[]).await.unwrap();
    connect(&server.url()).await;
    let read = async || -> u64 {
        let all = server.run("SHOW GLOBAL STATUS LIKE 'Handler_read%'").await.unwrap();
        let value = |row: &MySqlRow| String::from_utf8(row.get_unchecked::<Vec<u8>, _>(1)).unwrap();
        all.iter().map(|row| value(row).parse::<u64>().unwrap()).sum()
    };
    let rows = async || -> u64 {
        let before = read().await;
        let store = connect(&server.url()).await;
        let after = read().await;
        drop(store);
        after - before
    };
    let few = rows().await;
    server.run("INSERT INTO locks.onelock_line VALUES ('many', 0, 1, LEFT(SHA2('many', 256), 16), 'x', 1, 1, 9e15, 1, '')").await.unwrap();
    for n in 0..14 {
        let double = "USE locks; INSERT INTO onelock_line SELECT CONCAT(name, '{n}'), 0, 1, \
                      LEFT(SHA2(CONCAT(name, '{n}'), 256), 16), 'x', 1, 1, ends, 1, '' FROM onelock_line";
        server.run(&double.replace("{n}", &format!("-{n}"))).await.unwrap();
    }
    let many = rows().await;
    assert!(many < few + 5000, "{many} rows read while connecting, {few} with few names");
}
