//! Waiting: what one poll sees, how soon, and how many there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use onelock_conformance::rng::Rng;
use onelock_core::{Backend, Mode, Wake};

use crate::mysql_server::MariaDb;
use crate::mysql_server::counter::Counter;
use crate::support::{LONG, connect, counted, held, request, ticket, waiting};

/// With compound blocks (of MariaDB), and without.
const OPTIONS: [&str; 2] = ["", "&blocks=false"];

fn polls(counter: &Counter) -> u64 {
    counter.counts().polls.load(Ordering::SeqCst)
}

/// A poll says what the line says, whatever is ahead of it and in whatever order that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_says_what_the_line_says() {
    let server = MariaDb::start(&[]).await.unwrap();
    let other = connect(&server.url()).await;
    let modes = [Mode::Exclusive, Mode::Shared, Mode::permit(2).unwrap(), Mode::permit(3).unwrap()];
    let mut rng = Rng::new(7);
    let mut pick = |count: usize| rng.index(count);
    for options in OPTIONS {
        let (counter, store) = counted(&server, &format!("{options}&poll=1ms")).await;
        for round in 0..40 {
            let on = format!("line-{round}{}", options.len());
            // A few of one mode, a few of another, so that there are crowds that hold together.
            let ahead: Vec<_> = (0..=pick(4)).map(|_| request(&on, modes[pick(4)])).collect();
            let mut ahead: Vec<_> = ahead.iter().flat_map(|r| [r.clone(), request(&on, r.mode)]).collect();
            for entry in &ahead {
                other.acquire(entry).await.unwrap();
            }
            let entry = request(&on, modes[round % 4]);
            let standing = store.acquire(&entry).await.unwrap();
            let onelock_core::Standing::Waiting(place) = standing else {
                store.release(&entry.ticket()).await.unwrap();
                continue;
            };
            let waited = ticket(&entry, place.token.unwrap());
            let mut wait = std::pin::pin!(store.wait(&waited));
            let evicted = pick(5) == 0;
            loop {
                let held = other
                    .inspect(&entry.name)
                    .await
                    .unwrap()
                    .holders
                    .iter()
                    .any(|h| h.token == place.token.unwrap());
                if held {
                    let wake = tokio::time::timeout(LONG, &mut wait).await.expect("it holds").unwrap();
                    assert_eq!(wake, Wake::Held(place.token.unwrap()), "{on}");
                    break;
                }
                // Two polls that began after that see that it waits.
                let before = polls(&counter);
                while polls(&counter) < before + 3 {
                    let polled = futures_util::poll!(&mut wait);
                    assert!(matches!(polled, Poll::Pending), "{on} waits: {polled:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if evicted && ahead.len() < 3 {
                    other.evict(&entry.name, place.token.unwrap()).await.unwrap();
                    let wake = tokio::time::timeout(LONG, &mut wait).await.expect("it is gone").unwrap();
                    assert_eq!(wake, Wake::Ask, "{on}");
                    break;
                }
                other.release(&ahead.swap_remove(pick(ahead.len())).ticket()).await.unwrap();
            }
        }
        store.close().await.unwrap();
    }
}

/// A client each: those whose turn is far are polled for more rarely than the next, and all together far less than `poll` allows each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_behind_is_polled_for_rarely() {
    const CLIENTS: u64 = 16;
    let server = MariaDb::start(&[]).await.unwrap();
    let holder = connect(&server.url()).await;
    held(&holder, &request("far", Mode::Exclusive)).await;
    let mut all = Vec::new();
    for _ in 0..CLIENTS {
        let (counter, store) = counted(&server, "&poll=20ms").await;
        let entry = request("far", Mode::Exclusive);
        let place = waiting(&store, &entry).await;
        let waited = ticket(&entry, place.token.unwrap());
        all.push((counter, tokio::spawn(async move { store.wait(&waited).await })));
    }
    let count = || all.iter().map(|(counter, _)| polls(counter)).sum::<u64>();
    let end = Instant::now() + LONG;
    // They become rarer by and by. What is measured is how many come in a time.
    loop {
        let (before, since) = (count(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (seen, each) = (count() - before, u64::try_from(since.elapsed().as_millis() / 20).unwrap() + 2);
        // Each would be sixteen times that. And somebody polls.
        if (1..each * 5).contains(&seen) {
            break;
        }
        assert!(Instant::now() < end, "{seen} polls, {each} by the next at most");
    }
    for (_, wait) in all {
        wait.abort();
    }
}

/// Idle waiters: one poll asks for all of them, and neither polls nor bytes for each of them grow with their number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_waiters_cost_one_poll_for_all() {
    let server = MariaDb::start(&[]).await.unwrap();
    let other = connect(&server.url()).await;
    for lines in [false, true] {
        let mut each = Vec::new();
        for waiters in [50_u64, 200, 800] {
            let (counter, store) = counted(&server, "&poll=100ms").await;
            let store = Arc::new(store);
            let mut tasks = tokio::task::JoinSet::new();
            for i in 0..waiters {
                let on = format!("idle-{lines}-{waiters}-{}", if lines { i } else { 0 });
                if lines || i == 0 {
                    held(&other, &request(&on, Mode::Exclusive)).await;
                }
                let entry = request(&on, Mode::Exclusive);
                let waited = ticket(&entry, waiting(&*store, &entry).await.token.unwrap());
                let store = Arc::clone(&store);
                tasks.spawn(async move { store.wait(&waited).await });
            }
            // Pauses grow while nothing moves.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let bytes = || counter.counts().bytes.load(Ordering::SeqCst);
            let (before, sent, since) = (polls(&counter), bytes(), Instant::now());
            tokio::time::sleep(Duration::from_secs(2)).await;
            let (seen, sent, time) = (polls(&counter) - before, bytes() - sent, since.elapsed());
            // A poll of 800 names is two requests.
            let most = (time.as_millis() as u64 / 100 + 2) * waiters.div_ceil(512);
            println!(
                "{waiters} waiters of {} names: {seen} polls and {sent} bytes in {time:?}",
                if lines { waiters } else { 1 }
            );
            assert!(
                (1..=most).contains(&seen),
                "{waiters} waiters: {seen} polls in {time:?}, at most {most}"
            );
            each.push(sent / waiters);
            tasks.abort_all();
            while tasks.join_next().await.is_some() {}
            store.close().await.unwrap();
        }
        // A poll of few has its text on few: from there it only shrinks.
        assert!(
            each.windows(2).all(|pair| pair[1] <= pair[0] + pair[0] / 4),
            "bytes for each waiter: {each:?}"
        );
    }
}

/// A grant of an entry is none of the next one of its holder.
#[tokio::test]
async fn a_grant_of_an_earlier_entry_is_none_of_the_next_one() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let (first, twice, second) =
        (request("n", Mode::Exclusive), request("n", Mode::Exclusive), request("n", Mode::Exclusive));
    held(&other, &first).await;
    let before = waiting(&store, &twice).await.token.unwrap();
    other.release(&first.ticket()).await.unwrap();
    assert_eq!(store.wait(&ticket(&twice, before)).await.unwrap(), Wake::Held(before));
    waiting(&other, &second).await;
    other.evict(&twice.name, before).await.unwrap();
    let again = ticket(&twice, waiting(&store, &twice).await.token.unwrap());
    let mut wakes = Vec::new();
    while let Ok(wake) = tokio::time::timeout(Duration::from_millis(500), store.wait(&again)).await {
        wakes.push(wake.unwrap());
        assert!(wakes.len() < 5, "woken again and again, while another one holds: {wakes:?}");
    }
    assert!(!wakes.iter().any(|wake| matches!(wake, Wake::Held(_))), "{wakes:?}");
}
