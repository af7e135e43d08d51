//! Sets of locks, elections, waiting, loss, hand-over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use onelock::{Error, ErrorKind, HandOver, Leader, Locks, LossReason, Position};

use crate::{Done, PATIENCE, SECOND, check, expect, short};

pub async fn several(locks: &Locks, a: &str, b: &str) -> Done {
    let set = locks.all([b, a, b])?.ttl(short(locks))?;
    let both = set.acquire_timeout(PATIENCE).await?.ok_or("somebody holds them")?;
    let moved = both.run(async { "moved" }).await?;
    check(
        both.token(a)? == both.guards()[0].token()? && both.is_held() && moved == "moved",
        "both are held",
    )?;
    check(both.guards().len() == 2 && both.remaining() > Duration::ZERO, "the guards of a set")?;
    locks.evict(b, both.token(b)?).await?;
    let (which, why) = both.lost().await;
    check(which.as_str() == b && why.is_loss(), "the set tells which was lost")?;
    expect(both.release().await, ErrorKind::Lost)?;
    // One of them is busy: the other is given back.
    let held = locks.mutex(b)?.acquire().await?;
    check(locks.all([a, b])?.try_acquire().await?.is_none(), "all or nothing")?;
    held.release().await?;
    let set = locks.all_of([locks.rwlock(a)?.read(), locks.mutex(b)?])?;
    Ok(set.acquire().await?.release().await?)
}

pub async fn leader(locks: &Locks, name: &str) -> Done {
    let election = locks.election(name)?.note("outside")?.ttl(short(locks))?;
    let election = election.pause_after_failure(SECOND).step_down_notice(SECOND);
    let mut seen = election.observe();
    check(seen.next().await.is_none(), "nobody leads yet")?;
    let terms = AtomicU32::new(0);
    let led = election.run(|term| {
        let (election, terms) = (&election, &terms);
        async move {
            if terms.fetch_add(1, Ordering::SeqCst) == 0 {
                // It hands on, and as the only candidate leads again.
                term.step_down().await;
            }
            let leader = election.leader().await?;
            Ok::<_, Error>((term.token()?, leader.map(|Leader { note, token, .. }| (note, token))))
        }
    });
    let (token, leader) = led.await?;
    check(leader.is_some_and(|(note, leads)| note == "outside" && leads == token), "it leads")?;
    check(terms.load(Ordering::SeqCst) == 2 && election.leader().await?.is_none(), "two terms")?;
    let mut stream = election.observe().boxed();
    check(stream.next().await.is_some_and(|leader| leader.is_none()), "who leads, as a stream")
}

pub async fn waiting(locks: &Locks, name: &str) -> Done {
    let lock = locks.mutex(name)?;
    let first = lock.acquire().await?;
    check(lock.acquire_timeout(Duration::ZERO).await?.is_none(), "one try")?;
    check(lock.acquire_timeout(SECOND).await?.is_none(), "it is busy")?;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let waiter = lock.clone();
    let next = tokio::spawn(async move {
        waiter.acquire().progress(|place: &Position| _ = tell.send((place.ahead, place.holders.len()))).await
    });
    // The one that gave up leaves in the background, so it may be ahead at first.
    while told.recv().await.ok_or("it was not told that one is ahead, and holds")? != (1, 1) {}
    first.release().await?;
    Ok(next.await??.release().await?)
}

pub async fn ending(locks: &Locks, name: &str) -> Done {
    let lock = locks.mutex(name)?.ttl(short(locks))?;
    let renewed = lock.acquire().await?;
    check(renewed.renewed(renewed.deadline()).await.is_some(), "it is renewed")?;
    renewed.release().await?;
    let guard = lock.auto_renew(false).acquire().await?;
    let asked = guard.run_until(SECOND * 2, |stop| async move { stop.asked().await }).await;
    check(asked.is_ok() && guard.loss().is_none(), "it was asked before it was lost")?;
    guard.at_risk(SECOND).await;
    check(guard.lost().await == LossReason::Expired, "the lease has ended")?;
    let error = expect(guard.token(), ErrorKind::Lost)?;
    check(error.loss() == Some(LossReason::Expired), "the error knows why")?;
    expect(guard.release().await, ErrorKind::Lost)?;
    Ok(())
}

pub async fn weighing(locks: &Locks, name: &str) -> Done {
    let places = locks.semaphore(name, 3)?;
    let two = places.clone().weight(2)?.acquire().await?;
    check(places.clone().weight(2)?.try_acquire().await?.is_none(), "there is room for one")?;
    let one = places.acquire().await?;
    one.release().await?;
    Ok(two.release().await?)
}

pub async fn at_least(locks: &Locks, name: &str) -> Done {
    let lock = locks.mutex(name)?;
    if !locks.capabilities().resume {
        expect(lock.at_least(SECOND * 2), ErrorKind::Unsupported)?;
        return Ok(());
    }
    let job = lock.at_least(SECOND * 2)?.max_hold(PATIENCE)?;
    let began = Instant::now();
    job.acquire().await?.release().await?;
    check(job.try_acquire().await?.is_none(), "it stays taken")?;
    job.acquire().await?.release().await?;
    check(began.elapsed() >= SECOND * 2, "for its time")
}

pub async fn hand_over(locks: &Locks, name: &str, url: &str) -> Done {
    let guard = locks.mutex(name)?.acquire().await?;
    let token = guard.token()?;
    if !locks.capabilities().resume {
        expect(guard.hand_over().await, ErrorKind::Unsupported)?;
        return Ok(());
    }
    let text = serde_json::to_string(&guard.hand_over().await?)?;
    check(locks.mutex(name)?.try_acquire().await?.is_none(), "it is never free")?;
    // A memory store without a name is its client's alone.
    let other = if url == "memory://" { locks.clone() } else { onelock::connect(url).await? };
    let taken: HandOver = serde_json::from_str(&text)?;
    let guard = other.resume(taken.clone()).await?;
    check(guard.token()? == token, "the token stays")?;
    let twice = other.resume(taken).await.err().ok_or("it was used twice")?;
    check(twice.verb() == Some("resume") && twice.store().is_some(), "the error names verb and store")?;
    Ok(guard.release().await?)
}
