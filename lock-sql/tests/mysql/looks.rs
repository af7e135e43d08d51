//! Waiting: what one look sees, how soon, and how many there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use onelock_conformance::rng::Rng;
use onelock_conformance::servers::mariadb::mysqld;
use onelock_core::{Backend, Mode, Wake};

use crate::mysql_server::counter::Counter;
use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, counted, held, request, ticket, waiting};

/// With compound blocks (of MariaDB), and without.
const OPTIONS: [&str; 2] = ["", "&blocks=false"];

fn looks(counter: &Counter) -> u64 {
    counter.counts().looks.load(Ordering::SeqCst)
}

/// Short pauses are the server's, which are exact. A `poll` of one millisecond keeps them short: of longer ones only the end is
/// spent there, and nothing where the timers of this machine are late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_pauses() {
    let server = MariaDb::start(&[]).await.unwrap();
    // Without its mark: of a block the list shows the statement under way.
    let paused = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'";
    for options in OPTIONS {
        let (counter, store) = counted(&server, &format!("{options}&poll=1ms")).await;
        let on = format!("paused{}", options.len());
        let first = request(&on, Mode::Exclusive);
        held(&store, &first).await;
        let second = request(&on, Mode::Exclusive);
        let place = waiting(&store, &second).await;
        let second = ticket(&second, place.token.unwrap());
        let mut wait = std::pin::pin!(store.wait(&second));
        let end = Instant::now() + LONG;
        while server.count(paused).await.unwrap() == 0 {
            assert!(futures_util::poll!(&mut wait).is_pending());
            assert!(Instant::now() < end, "{} looks and no pause{options}", looks(&counter));
        }
        store.close().await.unwrap();
        // Nothing is left behind for long.
        while server.count(paused).await.unwrap() > 0 {
            assert!(Instant::now() < end, "a look goes on{options}");
        }
    }
}

/// Whose turn is next has a request under way at the server nearly all the time that looks again and again: it is told by
/// that one, without a request after the release. Once in a while that happens by chance; not five times in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_under_way_tells_the_next() {
    if mysqld().is_some() {
        println!("left out: MySQL has no compound blocks, and a request looks once there");
        return;
    }
    let server = MariaDb::start(&[]).await.unwrap();
    let other = connect(&server.url()).await;
    let (counter, store) = counted(&server, "").await;
    let store = Arc::new(store);
    let selects =
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Com_select'";
    let (mut in_turn, mut rounds, end) = (0, 0, Instant::now() + LONG);
    let (mut requests, mut looked) = (0, 0);
    while in_turn < 5 {
        assert!(Instant::now() < end, "told by a look under way {in_turn} times in turn, {rounds} rounds");
        let first = request("under-way", Mode::Exclusive);
        held(&other, &first).await;
        let second = request("under-way", Mode::Exclusive);
        let token = waiting(&*store, &second).await.token;
        let second = ticket(&second, token);
        let (all, before) = (server.count(selects).await.unwrap(), looks(&counter));
        let first_of_all = before;
        let wait = tokio::spawn({
            let (store, second) = (Arc::clone(&store), second.clone());
            async move { store.wait(&second).await }
        });
        // One that was answered, and the one that is under way.
        while looks(&counter) < before + 2 {
            tokio::task::yield_now().await;
        }
        let before = looks(&counter);
        other.release(&first.ticket()).await.unwrap();
        assert_eq!(wait.await.unwrap().unwrap(), Wake::Held(token));
        in_turn = if looks(&counter) == before { in_turn + 1 } else { 0 };
        rounds += 1;
        // Each request is answered by one more, and so is this question.
        requests += looks(&counter) - first_of_all;
        looked += server.count(selects).await.unwrap() - all - 1;
        store.release(&second).await.unwrap();
    }
    assert!(looked > 2 * requests, "{requests} requests looked {looked} times, answers included");
}

/// The first look for `entry`, which waits in `store` alone, as the server has logged it. The log was empty before.
async fn first_look(server: &MariaDb, store: &dyn Backend, entry: &onelock_core::Ticket) -> String {
    let mut wait = std::pin::pin!(store.wait(entry));
    let query = "SELECT argument FROM mysql.general_log WHERE argument LIKE '/* onelock looks */%' ORDER BY event_time";
    let end = Instant::now() + LONG;
    loop {
        assert!(futures_util::poll!(&mut wait).is_pending());
        assert!(Instant::now() < end, "nobody looks");
        if let Some(first) = server.texts(query).await.unwrap().into_iter().next() {
            return first;
        }
    }
}

/// Who joins a name that its client knows is told by the answer how far behind it is, and behind whom: on MariaDB it waits for that one's
/// bell before it looks, and elsewhere it sleeps as long as the turns may take. A slow machine may be late once; not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_just_joined_pauses_before_the_first_look() {
    let server = MariaDb::start(&[]).await.unwrap();
    server.run("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = ON").await.unwrap();
    let other = connect(&server.url()).await;
    for options in OPTIONS {
        let (_counter, store) = counted(&server, options).await;
        let bells = options.is_empty() && mysqld().is_none();
        let end = Instant::now() + LONG;
        for round in 0.. {
            let on = format!("just-{round}{}", options.len());
            let first = request(&on, Mode::Exclusive);
            let token = held(&store, &first).await.token;
            store.release(&ticket(&first, token)).await.unwrap();
            for _ in 0..6 {
                other.acquire(&request(&on, Mode::Exclusive)).await.unwrap();
            }
            // Not between the join and the wait: that may take longer than the turns.
            server.run("TRUNCATE mysql.general_log").await.unwrap();
            let entry = request(&on, Mode::Exclusive);
            let entry = ticket(&entry, waiting(&store, &entry).await.token);
            let look = first_look(&server, &store, &entry).await;
            store.release(&entry).await.unwrap();
            if bells {
                assert!(look.contains("GET_LOCK("), "{look}");
                break;
            }
            if !look.contains("SLEEP(0 *") {
                assert!(look.contains("SLEEP("), "{look}");
                break;
            }
            assert!(Instant::now() < end, "first looks come at once{options}: {look}");
        }
    }
}

/// A look at one entry says what the line says, whatever is ahead of it and in whatever order that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_one_says_what_the_line_says() {
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
                let held =
                    other.inspect(&entry.name).await.unwrap().holders.iter().any(|h| h.token == place.token.unwrap());
                if held {
                    let wake = tokio::time::timeout(LONG, &mut wait).await.expect("it holds").unwrap();
                    assert_eq!(wake, Wake::Held(place.token.unwrap()), "{on}");
                    break;
                }
                // Two looks that began after that see that it waits.
                let before = looks(&counter);
                while looks(&counter) < before + 3 {
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

/// A client each: those whose turn is far look more rarely than the next, and all together far less than `poll` allows each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_behind_looks_rarely() {
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
    let count = || all.iter().map(|(counter, _)| looks(counter)).sum::<u64>();
    let end = Instant::now() + LONG;
    // They become rarer by and by. What is measured is how many come in a time.
    loop {
        let (before, since) = (count(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (seen, each) = (count() - before, u64::try_from(since.elapsed().as_millis() / 20).unwrap() + 2);
        // Each would be sixteen times that. And somebody looks.
        if (1..each * 5).contains(&seen) {
            break;
        }
        assert!(Instant::now() < end, "{seen} looks, {each} by the next at most");
    }
    for (_, wait) in all {
        wait.abort();
    }
}
