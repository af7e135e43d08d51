//! Lines whose keys somebody else has changed: their ends taken off, or a key of theirs deleted.

use std::time::{Duration, Instant};

use crate::common::group::bucket;
use crate::common::{HOUR, PATIENCE, Server, held, renew_one, request, waits};
use onelock_core::{Backend, ErrorKind, Release, Renewal, Renewed, Standing};

/// A tool that copies keys may leave out when they end.
#[tokio::test]
async fn a_key_whose_end_was_taken_off_is_held_until_its_release() {
    let server = Server::start(&[]).await;
    let (a, b) = (server.backend().await, server.backend().await);
    let (mine, others) = (request("kept", "x"), request("kept", "x").queue(false));
    held(a.acquire(&mine).await.unwrap());
    let mut raw = server.raw().await;
    let key = raw.residue().await.swap_remove(0);
    assert_eq!(raw.int(&format!("PERSIST {key}")).await, 1);
    assert!(matches!(b.acquire(&others).await.unwrap(), Standing::Busy(_)), "two hold");
    assert!(matches!(renew_one(&*a, &mine.ticket()).await, Ok(Renewed::Held(_))));
    assert!(raw.int(&format!("PTTL {key}")).await > 0, "it stays for ever if its holder dies");
    assert_eq!(a.release(&mine.ticket()).await.unwrap(), Release::Released);
    held(b.acquire(&others).await.unwrap());
}

/// The same of a line: no lease of it may be cut to that of another entry, whatever is written next.
#[tokio::test]
async fn a_line_whose_ends_were_taken_off_lasts_as_long_as_its_longest_lease() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    for (lock, mode) in [("a", "s"), ("b", "x"), ("c", "s")] {
        let (long, brief) = (request(lock, mode), request(lock, mode));
        let brief = brief.lease(HOUR / 60).waiter_lease(HOUR / 60);
        let first = held(backend.acquire(&long).await.unwrap());
        backend.acquire(&brief).await.unwrap();
        for key in raw.residue().await.iter().filter(|key| key.ends_with(lock)) {
            assert_eq!(raw.int(&format!("PERSIST {key}")).await, 1);
        }
        match lock {
            // A renewal, an eviction that promotes, a join.
            "a" => drop(backend.renew(&[Renewal::new(brief.ticket(), HOUR / 30, HOUR / 60)]).await),
            "b" => drop(backend.evict(&long.name, first.token).await.unwrap()),
            _ => drop(backend.acquire(&request(lock, "x").waiter_lease(HOUR / 60)).await.unwrap()),
        }
        let least = if lock == "b" { 30_000 } else { 1_800_000 };
        let keys: Vec<_> = raw.residue().await.into_iter().filter(|key| key.ends_with(lock)).collect();
        assert!(keys.len() >= 2, "{keys:?}");
        for key in keys {
            let left = raw.int(&format!("PTTL {key}")).await;
            assert!(left > least, "{key} ends in {left} ms");
        }
    }
}

/// A key of a line that the server evicts, or that is deleted by hand, costs who is in it, and keeps nobody waiting for ever.
#[tokio::test]
async fn a_line_that_has_lost_a_key_goes_on() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    for (lost, released) in [("e", true), ("o", false), ("o", true), ("w", true), ("x", true)] {
        let [holder, first, second, late] = ["x"; 4].map(|mode| request("a", mode));
        held(backend.acquire(&holder).await.unwrap());
        for waiter in [&first, &second] {
            waits(backend.acquire(waiter).await.unwrap());
        }
        assert_eq!(raw.int(&format!("DEL onelock:{{44}}:{lost}:a")).await, 1);
        waits(backend.acquire(&late).await.unwrap());
        if released {
            // With `e` it has lost its entry; with `o` its place, which the first waiter has by then.
            let answer = if ["e", "o"].contains(&lost) { Release::NotHeld } else { Release::Released };
            assert_eq!(backend.release(&holder.ticket()).await.unwrap(), answer, "{lost}");
        } else {
            assert_eq!(renew_one(&*backend, &holder.ticket()).await.unwrap(), Renewed::NotHeld);
        }
        // Each has its turn or is told that it has none; or is dead.
        let mut turns = if lost == "x" { vec![late] } else { vec![first, second, late] };
        for round in 0.. {
            assert!(round < 9, "{lost}, {released}: {} wait for nobody", turns.len());
            let Some(asks) = turns.pop() else { break };
            match renew_one(&*backend, &asks.ticket()).await.unwrap() {
                Renewed::Waiting(_) => turns.insert(0, asks),
                Renewed::NotHeld => {}
                Renewed::Held(_) => {
                    assert_eq!(backend.release(&asks.ticket()).await.unwrap(), Release::Released);
                }
            }
        }
        assert_eq!(raw.residue().await, Vec::<String>::new(), "{lost}");
    }
}

/// Who waits dies, and keys of its line go: by eviction, by hand. The next one who joins holds, at the latest when the leases of
/// those who were there have ended; or is told that what is left is no line, until its end.
#[tokio::test]
async fn a_line_that_has_lost_any_of_its_keys_is_free_again() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let brief = Duration::from_millis(300);
    let mut lines = Vec::new();
    for lost in 1..15 {
        for (i, modes) in ["xx", "xxx", "ssx", "sxs"].iter().enumerate() {
            let name = format!("{lost}-{i}");
            for mode in modes.chars() {
                let ask = request(&name, &mode.to_string()).lease(brief).waiter_lease(brief);
                backend.acquire(&ask).await.unwrap();
            }
            for (_, kind) in "eowx".chars().enumerate().filter(|(bit, _)| lost & (1 << bit) != 0) {
                raw.run(&format!("DEL onelock:{{{}}}:{kind}:{name}", bucket(&name))).await;
            }
            lines.push((request(&name, "x"), true));
        }
    }
    let until = Instant::now() + PATIENCE;
    while !lines.is_empty() {
        let mut stuck = Vec::new();
        for (next, new) in lines {
            let joined = if new {
                backend.acquire(&next).await.map(|standing| (matches!(standing, Standing::Held(_)), false))
            } else {
                let renewed = renew_one(&*backend, &next.ticket()).await;
                renewed.map(|renewed| (matches!(renewed, Renewed::Held(_)), renewed == Renewed::NotHeld))
            };
            match joined {
                Ok((true, _)) => {}
                Ok((false, new)) => stuck.push((next, new)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Foreign, "{}: {error}", next.name);
                    stuck.push((next, new));
                }
            }
        }
        lines = stuck;
        let names = || lines.iter().map(|(next, _)| next.name.as_str()).collect::<Vec<_>>();
        assert!(Instant::now() < until, "nobody holds: {:?}", names());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
