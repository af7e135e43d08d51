//! What the scripts promise beyond the line itself: cost, residue, foreign data, numbers, listings.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{HOUR, Server, held, name, renew_one, request, soon, token, waits};
use onelock_core::{Backend, ErrorKind, Page, Raise, Release, Renewal, Renewed, Standing, Wake};
use onelock_redis::RedisBackend;
use redis::Value;

#[tokio::test]
async fn a_cycle_is_two_scripts_and_leaves_one_counter() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let before = raw.calls("evalsha").await;
    let ask = request("a", "x");
    let grant = held(backend.acquire(&ask).await.unwrap());
    assert_eq!(raw.residue().await, ["onelock:{44}:e:a"]);
    assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
    assert_eq!(raw.calls("evalsha").await - before, 2);
    assert_eq!(raw.residue().await, Vec::<String>::new());
    assert_eq!(raw.text("GET onelock:{44}:n").await, grant.token.to_string());
    assert_eq!(raw.int("PTTL onelock:{44}:n").await, -1);
    assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::NotHeld);
}

/// A clock that steps must not find one key of a line gone and another there.
#[tokio::test]
async fn every_key_of_a_line_ends_at_one_moment() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let mut line = Vec::new();
    for step in 0..600_usize {
        if line.len() < 6 {
            let ask = request("a", ["x", "s", "s", "p2", "p2", "x"][step % 6]);
            backend.acquire(&ask).await.unwrap();
            line.push(ask);
        }
        let renewed = line[step % line.len()].ticket();
        assert!(renew_one(&*backend, &renewed).await.is_ok());
        if step % 3 > 0 {
            let gone = line.remove(if step % 4 == 0 { line.len() / 2 } else { 0 });
            assert_eq!(backend.release(&gone.ticket()).await.unwrap(), Release::Released);
        }
        let mut ends = BTreeSet::new();
        for key in raw.residue().await {
            ends.insert(raw.int(&format!("PEXPIRETIME {key}")).await);
        }
        assert!(ends.len() <= 1 && !ends.contains(&-1), "step {step}: {ends:?}");
    }
}

/// Who joins and leaves must not make the keys of a line end before its holder's lease does.
#[tokio::test]
async fn joins_do_not_move_the_end_of_a_line() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let first = request("a", "x");
    held(backend.acquire(&first).await.unwrap());
    let lease = raw.int("PEXPIRETIME onelock:{44}:e:a").await;
    let mut before = None;
    for _ in 0..3000 {
        let brief = request("a", "x").waiter_lease(Duration::from_secs(60));
        waits(backend.acquire(&brief).await.unwrap());
        backend.release(&brief.ticket()).await.unwrap();
        if before.is_none() {
            // The first to join made it a line, whose keys live a little longer than its leases.
            before = Some(raw.int("PEXPIRETIME onelock:{44}:e:a").await);
        }
    }
    assert!(before > Some(lease), "the keys of a line end before its lease");
    for key in raw.residue().await {
        assert_eq!(Some(raw.int(&format!("PEXPIRETIME {key}")).await), before, "{key}");
    }
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_costs_a_connection() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    raw.run("SCRIPT FLUSH").await;
    let ask = request("a", "x");
    held(backend.acquire(&ask).await.unwrap());
    assert!(matches!(renew_one(&*backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
    raw.run("SCRIPT FLUSH").await;
    assert!(matches!(renew_one(&*backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
    assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn what_is_not_ours_is_refused_and_left_alone() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let plants = [
        ("SET", "onelock:{44}:e:a", "v"),
        ("SET", "onelock:{44}:o:a", "v"),
        ("SET", "onelock:{44}:w:a", "v"),
        ("SET", "onelock:{44}:x:a", "v"),
        ("HSET", "onelock:{44}:e:a", "f v"),
        ("SET", "onelock:{44}:n", "v"),
    ];
    for (verb, key, value) in plants {
        raw.run("FLUSHALL").await;
        raw.run(&format!("{verb} {key} {value}")).await;
        let before = raw.run(&format!("DUMP {key}")).await;
        let ask = request("a", "x");
        let error = backend.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{verb} {key}: {error}");
        assert!(!error.is_unclear());
        if !key.ends_with(":n") {
            assert_eq!(
                backend.inspect(&ask.name).await.unwrap_err().kind(),
                ErrorKind::Foreign,
                "{verb} {key}"
            );
        }
        assert_eq!(raw.run(&format!("DUMP {key}")).await, before, "{verb} {key}");
        raw.run(&format!("DEL {key}")).await;
        assert_eq!(raw.residue().await, Vec::<String>::new(), "{verb} {key}");
    }
}

#[tokio::test]
async fn each_renewal_of_a_batch_is_answered_by_itself() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let mut due = Vec::new();
    for i in 0..200 {
        let ask = request(&format!("n{i}"), "x");
        held(backend.acquire(&ask).await.unwrap());
        due.push(Renewal::new(ask.ticket(), HOUR * 2, HOUR));
    }
    backend.release(&due[70].ticket).await.unwrap();
    raw.run(&format!("SET {} v", entry_key(&mut raw.clone(), "n9").await)).await;
    let before = raw.calls("evalsha").await;
    let answers = backend.renew(&due).await;
    assert_eq!(raw.calls("evalsha").await - before, 4);
    assert_eq!(answers.len(), 200);
    for (i, answer) in answers.into_iter().enumerate() {
        match i {
            9 => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Foreign),
            70 => assert_eq!(answer.unwrap(), Renewed::NotHeld),
            _ => assert!(matches!(answer, Ok(Renewed::Held(g)) if g.lease == HOUR * 2), "{i}: {answer:?}"),
        }
    }
    // What the core never asks for is counted as far as Redis can.
    let mut longest = due[1].clone();
    longest.lease = Duration::MAX;
    let Renewed::Held(grant) = backend.renew(&[longest]).await.swap_remove(0).unwrap() else { panic!() };
    assert!(grant.lease > HOUR * 24 * 365 * 1000);
}

async fn entry_key(raw: &mut crate::common::Raw, name: &str) -> String {
    let keys = raw.residue().await;
    keys.into_iter().find(|key| key.ends_with(&format!(":e:{name}"))).unwrap()
}

#[tokio::test]
async fn ten_thousand_waiters_need_one_connection_and_one_channel() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let first = request("a", "x");
    held(backend.acquire(&first).await.unwrap());
    let waiters: Vec<_> = (0..10_000).map(|_| request("a", "x")).collect();
    for ask in &waiters {
        waits(backend.acquire(ask).await.unwrap());
    }
    let Value::Array(channels) = raw.run("PUBSUB CHANNELS onelock:*").await else { panic!() };
    assert_eq!(channels.len(), 1);
    assert_eq!(raw.int("ZCARD onelock:{44}:w:a").await, 10_000);
    let seen = backend.inspect(&first.name).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 10_000));
    assert!(seen.waiters.is_sorted_by_key(|w| w.token));
    backend.release(&first.ticket()).await.unwrap();
    assert!(matches!(soon(backend.wait(&waiters[0].ticket())).await.unwrap(), Wake::Held(_)));
}

#[tokio::test]
async fn a_dead_line_leaves_nothing_and_a_dead_waiter_leaves_the_line() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let holder = request("a", "x");
    held(backend.acquire(&holder).await.unwrap());
    let mut dead = request("a", "x");
    dead.waiter_lease = Duration::from_millis(10);
    waits(backend.acquire(&dead).await.unwrap());
    let next = request("a", "x");
    waits(backend.acquire(&next).await.unwrap());
    poll(async || backend.inspect(&name("a")).await.unwrap().waiters.len() == 1).await;
    backend.release(&holder.ticket()).await.unwrap();
    assert!(matches!(soon(backend.wait(&next.ticket())).await.unwrap(), Wake::Held(_)));
    assert_eq!(renew_one(&*backend, &dead.ticket()).await.unwrap(), Renewed::NotHeld);
    backend.release(&next.ticket()).await.unwrap();

    for i in 0..4 {
        let mut short = request("b", ["x", "x", "s", "p2"][i]);
        (short.lease, short.waiter_lease) = (Duration::from_millis(50), Duration::from_millis(90));
        backend.acquire(&short).await.unwrap();
    }
    assert!(!raw.residue().await.is_empty());
    let mut poller = raw.clone();
    // Nobody touches the line: the server alone removes it.
    let until = std::time::Instant::now() + crate::common::PATIENCE;
    while poller.int("DBSIZE").await > 2 {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(raw.residue().await, Vec::<String>::new());
}

async fn poll(mut done: impl AsyncFnMut() -> bool) {
    soon(async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn raise_lifts_the_counter_only_while_the_entry_is_ours() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let ask = request("a", "x");
    held(backend.acquire(&ask).await.unwrap());
    assert_eq!(backend.raise(&ask.ticket(), token(1 << 52)).await.unwrap(), Raise::Raised);
    assert_eq!(backend.raise(&ask.ticket(), token(5)).await.unwrap(), Raise::Raised);
    assert_eq!(raw.text("GET onelock:{44}:n").await, (1_i64 << 52).to_string());
    let error = backend.raise(&ask.ticket(), token((1 << 52) + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    backend.release(&ask.ticket()).await.unwrap();
    assert_eq!(backend.raise(&ask.ticket(), token(7)).await.unwrap(), Raise::NotHeld);
    // Large numbers stay exact on their way through Lua, scores and answers.
    let (first, second) = (request("a", "x"), request("a", "x"));
    assert_eq!(held(backend.acquire(&first).await.unwrap()).token, token((1 << 52) + 1));
    assert_eq!(waits(backend.acquire(&second).await.unwrap()).token, Some(token((1 << 52) + 2)));
    let seen = backend.inspect(&first.name).await.unwrap();
    assert_eq!((seen.holders[0].token, seen.waiters[0].token), (token((1 << 52) + 1), token((1 << 52) + 2)));
    assert_eq!(backend.evict(&first.name, token((1 << 52) + 1)).await.unwrap(), Release::Released);
    assert_eq!(soon(backend.wait(&second.ticket())).await.unwrap(), Wake::Held(token((1 << 52) + 2)));
    raw.run("SET onelock:{44}:n 9007199254740991").await;
    let error = backend.acquire(&request("a", "x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(backend.inspect(&first.name).await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn a_listing_shows_each_living_name_once_and_no_other() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let mut other = server.config();
    other.namespace = "onelock2".into();
    let other = RedisBackend::connect(other).await.unwrap();
    held(other.acquire(&request("x/elsewhere", "x")).await.unwrap());
    for foreign in
        ["SET onelock:{1}:e:x v", "SET onelock:{99}:e:x%2Fz v", "HSET onelock:{44}:e:a f v", "SET y v"]
    {
        raw.run(foreign).await;
    }
    let mut expected = BTreeSet::new();
    for i in 0..500 {
        let ask = request(&format!("x/{i}*?[a]"), "s");
        expected.insert(ask.name.clone());
        held(backend.acquire(&ask).await.unwrap());
        held(backend.acquire(&request(&format!("z{i}"), "x")).await.unwrap());
    }
    let mut scans = Vec::new();
    for limit in [1, 7, 100, 10_000] {
        let before = raw.calls("scan").await;
        let mut names = Vec::new();
        let mut page = Page::first(limit).unwrap();
        loop {
            let listing = backend.list("x/", &page).await.unwrap();
            assert!(listing.names.len() <= limit);
            assert!(listing.names.iter().all(|n| (n.holders, n.waiters) == (1, 0)));
            names.extend(listing.names.into_iter().map(|n| n.name));
            match listing.next {
                Some(next) => page = page.after(next),
                None => break,
            }
        }
        assert_eq!(names.len(), 500);
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        scans.push(raw.calls("scan").await - before);
    }
    // The server is scanned once for all pages, however many; its table may grow meanwhile.
    assert!(scans.iter().all(|count| *count <= 2 * scans[3]), "{scans:?}");
    let first = backend.list("x/", &Page::first(7).unwrap()).await.unwrap();
    let elsewhere = server.backend().await;
    let page = Page::first(10).unwrap().after(first.next.unwrap());
    assert!(elsewhere.list("x/", &page).await.is_ok());
    for bad in ["", "x", "1.", ".1", "1.x", "-1.0"] {
        let error = backend.list("", &Page::first(1).unwrap().after(bad.into())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
    }
}

/// Where the server refuses writes, a line with an expired entry cannot be counted: it is not left out as if it were empty.
#[tokio::test]
async fn a_listing_leaves_no_living_name_out() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    held(backend.acquire(&request("a", "x")).await.unwrap());
    let brief = request("a", "x").waiter_lease(Duration::from_millis(1));
    waits(backend.acquire(&brief).await.unwrap());
    raw.run("CONFIG SET min-replicas-to-write 1").await;
    let ends = raw.text(&format!("ZSCORE onelock:{{44}}:x:a {}", brief.holder.to_hex())).await;
    let over = "return tonumber(redis.call('TIME')[1]) * 1000 > tonumber(ARGV[1]) and 1 or 0";
    poll(async || raw.run_args(&["EVAL", over, "0", &ends]).await == Value::Int(1)).await;
    match backend.list("", &Page::first(9).unwrap()).await {
        Ok(listing) => assert_eq!(listing.names.len(), 1, "a held lock is left out"),
        Err(error) => assert!(error.is_retryable() && error.to_string().contains("NOREPLICAS"), "{error}"),
    }
}

#[tokio::test]
async fn after_close_every_verb_fails() {
    let server = Server::start(&[]).await;
    let backend = server.backend().await;
    let (ask, next) = (request("a", "x"), request("a", "x"));
    held(backend.acquire(&ask).await.unwrap());
    waits(backend.acquire(&next).await.unwrap());
    let waiting = tokio::spawn({
        let (backend, ticket) = (backend.clone(), next.ticket());
        async move { backend.wait(&ticket).await }
    });
    backend.close().await.unwrap();
    backend.close().await.unwrap();
    let closed = |e: onelock_core::Error| assert_eq!(e.kind(), ErrorKind::Closed);
    closed(soon(waiting).await.unwrap().unwrap_err());
    closed(backend.acquire(&ask).await.unwrap_err());
    closed(backend.wait(&ask.ticket()).await.unwrap_err());
    closed(renew_one(&*backend, &ask.ticket()).await.unwrap_err());
    closed(backend.release(&ask.ticket()).await.unwrap_err());
    closed(backend.raise(&ask.ticket(), token(1)).await.unwrap_err());
    closed(backend.inspect(&ask.name).await.unwrap_err());
    closed(backend.list("", &Page::first(1).unwrap()).await.unwrap_err());
    closed(backend.evict(&ask.name, token(1)).await.unwrap_err());
}

#[tokio::test]
async fn a_try_leaves_no_trace_and_never_passes_a_waiter() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let first = request("a", "s");
    held(backend.acquire(&first).await.unwrap());
    waits(backend.acquire(&request("a", "x")).await.unwrap());
    let mut attempt = request("a", "s");
    attempt.queue = false;
    let before = raw.text("GET onelock:{44}:n").await;
    let Standing::Busy(busy) = backend.acquire(&attempt).await.unwrap() else { panic!("not busy") };
    assert!(busy.retry_after.is_some_and(|t| t <= HOUR && t > HOUR / 2));
    assert_eq!(raw.text("GET onelock:{44}:n").await, before);
    assert_eq!(raw.int("HLEN onelock:{44}:e:a").await, 2);
}

/// A grant of an entry is none of the next one of its holder.
#[tokio::test]
async fn a_grant_of_an_earlier_entry_is_none_of_the_next_one() {
    let server = Server::start(&[]).await;
    let (backend, other) = (server.backend().await, server.backend().await);
    let (first, twice, second) = (request("a", "x"), request("a", "x"), request("a", "x"));
    held(other.acquire(&first).await.unwrap());
    let before = waits(backend.acquire(&twice).await.unwrap()).token.unwrap();
    other.release(&first.ticket()).await.unwrap();
    assert_eq!(soon(backend.wait(&twice.ticket().token(before))).await.unwrap(), Wake::Held(before));
    waits(other.acquire(&second).await.unwrap());
    other.evict(&twice.name, before).await.unwrap();
    let again = twice.ticket().token(waits(backend.acquire(&twice).await.unwrap()).token.unwrap());
    let mut wakes = Vec::new();
    while let Ok(wake) = tokio::time::timeout(Duration::from_millis(500), backend.wait(&again)).await {
        wakes.push(wake.unwrap());
        assert!(wakes.len() < 5, "woken again and again, while another one holds: {wakes:?}");
    }
    assert!(!wakes.iter().any(|wake| matches!(wake, Wake::Held(_))), "{wakes:?}");
}
