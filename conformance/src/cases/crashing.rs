//! Clients in processes of their own are killed or stopped.

use std::time::{Duration, Instant};

use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;
use rustix::process::Signal;

use crate::aside::Aside;
use crate::case::{Need, table};
use crate::ctx::{Ctx, cut_at, name};
use crate::verdict::{Stop, Verdict};
use crate::worker::Worker;
use crate::{ensure, ensure_eq};

table! {
    crashed_holder: [5, 6], [Need::Processes, Need::Line], 180;
    crashed_waiter: [6], [Need::Processes, Need::Line], 180;
    stopped_holder: [7], [Need::Processes, Need::Line], 180;
    stopped_waiter: [6, 9], [Need::Processes, Need::Line], 180;
    death_in_the_middle: [5, 6], [], 120;
}

/// A holder that is killed keeps the lock for what is left of its lease, not less, and then the next one holds.
async fn crashed_holder(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks_for(ctx.units(5)).await?;
    for round in 0..ctx.many(3) {
        let text = format!("killed-{round}");
        let mut worker = Worker::start(ctx, ctx.units(5))?;
        let (token, deadline) = worker.acquire(&text).await?;
        let next = ctx.queued(locks.mutex(&text)?, &locks, 2).await?;
        worker.kill().await?;
        let next = ctx.soon("the next one holds", next).await???;
        ensure!(ctx.now() >= deadline, "taken over before the dead holder's deadline");
        ensure!(next.token()?.get() > token, "token {} after {token}", next.token()?);
        next.release().await?;
    }
    Ok(())
}

/// Waiters that are killed, at the head of the line and behind it, leave it: the next living one is served.
async fn crashed_waiter(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks_for(ctx.units(5)).await?;
    for round in 0..ctx.many(2) {
        let text = format!("killed-waiter-{round}");
        let line = name(&text)?;
        let holder = locks.mutex(&text)?.acquire().await?;
        let mut dead = Vec::new();
        for i in 0..2 {
            let mut worker = Worker::start(ctx, ctx.units(5))?;
            worker.send(&format!("acquire {text}")).await?;
            ctx.until_line_has(locks.backend(), &line, i + 2).await?;
            dead.push(worker);
        }
        let next = ctx.queued(locks.mutex(&text)?, &locks, 4).await?;
        for worker in dead {
            worker.kill().await?;
        }
        if round % 2 == 0 {
            // They leave while the lock is held; else they are promoted first, dead as they are.
            ctx.until_line_has(locks.backend(), &line, 2).await?;
        }
        holder.release().await?;
        ctx.soon("the living waiter holds", next).await???.release().await?;
    }
    Ok(())
}

/// A holder that was stopped past its lease knows at the first look that it holds no more; the next one is not hurt.
async fn stopped_holder(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks_for(ctx.units(5)).await?;
    for round in 0..ctx.many(2) {
        let text = format!("stopped-{round}");
        let mut worker = Worker::start(ctx, ctx.units(5))?;
        let (token, _) = worker.acquire(&text).await?;
        worker.signal(Signal::STOP)?;
        // What it will do first when it goes on.
        worker.send(&format!("held {text}")).await?;
        worker.send(&format!("release {text}")).await?;
        let next = ctx.soon("the next one holds", locks.mutex(&text)?.acquire()).await??;
        worker.signal(Signal::CONT)?;
        ensure_eq!(worker.answer().await?, "false false", "is_held and token of the stopped holder");
        ensure_eq!(worker.answer().await?, "Lost", "its release");
        ensure!(next.is_held() && next.token()?.get() > token, "the next holder was hurt");
        let line = locks.inspect(&text).await?;
        ensure_eq!(line.holders.first().map(|h| h.token), Some(next.token()?), "the holder at the end");
        next.release().await?;
        worker.kill().await?;
    }
    Ok(())
}

/// A waiter that was stopped past its waiter lease is passed by, and comes in with a new number at the end of the line.
async fn stopped_waiter(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks_for(ctx.units(8)).await?;
    let text = "stopped-waiter";
    let line = name(text)?;
    let holder = locks.mutex(text)?.acquire().await?;
    let mut worker = Worker::start(ctx, ctx.units(5))?;
    worker.send(&format!("acquire {text}")).await?;
    ctx.until_line_has(locks.backend(), &line, 2).await?;
    let next = ctx.queued(locks.mutex(text)?, &locks, 3).await?;
    worker.signal(Signal::STOP)?;
    // Its wake-up reaches a process that stalls.
    holder.release().await?;
    let next = ctx.soon("the line moves on", next).await???;
    worker.signal(Signal::CONT)?;
    ctx.until_line_has(locks.backend(), &line, 2).await?;
    let shown = locks.inspect(text).await?;
    ensure_eq!(shown.holders.first().map(|h| h.token), Some(next.token()?), "the holder");
    let token = next.token()?.get();
    next.release().await?;
    let (late, _) = worker.acquired().await?;
    ensure!(late > token, "token {late} after {token}");
    worker.send(&format!("release {text}")).await?;
    ensure_eq!(worker.answer().await?, "released", "its release");
    Ok(())
}

/// How many clients die, spread over the steps of taking a lock and giving it back.
const DEATHS: u32 = 16;

/// Clients that die half way through an acquire, a hold or a release, with all their tasks, block nobody for longer than
/// their lease.
async fn death_in_the_middle(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(3);
    let other = ctx.locks().await?;
    for round in 0..ctx.many(1) {
        let (mut dead, mut held) = (Vec::new(), 0);
        for i in 0..DEATHS {
            let text = format!("half-way-{round}-{i}");
            let aside = Aside::start()?;
            let backend = ctx.backend_on(&aside.handle).await?;
            let lock = aside.client(ctx, backend, lease, lease)?.mutex(&text)?;
            let begun = aside.handle.spawn(begin(lock, i == 0));
            let (lock, cycle, guard) = ctx.soon("a client is at work", begun).await???;
            held += u32::from(guard.as_ref().is_some_and(Guard::is_held));
            aside.handle.spawn(live(lock, guard));
            // To the microsecond: timers tick in milliseconds.
            cut_at(std::future::pending::<()>(), cycle * i / DEATHS).await;
            aside.end().await?;
            dead.push(text);
        }
        ensure!(held > 0, "nobody died as a holder: the moments are badly chosen");
        for text in dead {
            let got = other.mutex(&text)?.acquire_timeout(lease + Duration::from_secs(10)).await?;
            let guard = got.ok_or_else(|| {
                Stop::failed(format!("`{text}`: its client is dead, and the lock is not free a lease later"))
            })?;
            guard.release().await?;
        }
    }
    Ok(())
}

/// Takes the lock as often as tells how long a cycle takes, and then holds it if it is to.
async fn begin(lock: Lock, hold: bool) -> onelock_core::Result<(Lock, Duration, Option<Guard>)> {
    // The first may have to teach the server its scripts.
    lock.acquire().await?.release().await?;
    let began = Instant::now();
    lock.acquire().await?.release().await?;
    let cycle = began.elapsed();
    let guard = if hold { Some(lock.acquire().await?) } else { None };
    Ok((lock, cycle, guard))
}

/// Holds, or takes and gives back, until its runtime ends.
async fn live(lock: Lock, guard: Option<Guard>) {
    if let Some(guard) = guard {
        guard.lost().await;
    }
    while let Ok(guard) = lock.acquire().await {
        // A store that says no ends it as well as one that says yes.
        let _done = guard.release().await;
        // A store inside this process may never make anybody wait.
        tokio::task::yield_now().await;
    }
}
