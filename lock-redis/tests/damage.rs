//! Lines whose keys somebody else has changed: their ends taken off, or a key of theirs deleted.

use crate::common::{HOUR, Server, held, renew_one, request, waits};
use onelock_core::{Backend, Release, Renewal, Renewed, Standing};

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
