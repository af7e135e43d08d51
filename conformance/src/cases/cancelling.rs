//! Futures dropped or left alone at any moment, and waiters that give up: nothing stays behind, and nobody is held up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use onelock_core::client::Locks;

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, PATIENCE, alive_tasks, all, cut_at, in_time, name, patient};
use crate::faults::{Fault, Link};
use crate::verdict::{Stop, Verdict};
use crate::{ensure, ensure_eq};

table! {
    cancelled_acquires_leave_nothing: [15, 16], [], 480;
    cancelled_releases_leave_nothing: [15, 16], [], 120;
    impatient_waiters_leave: [3, 15], [Need::Line], 180;
    calls_that_stall_hold_nobody_up: [15], [], 240;
    calls_that_stall_cost_no_lease: [15], [], 120;
    many_calls_that_stall_cost_no_lease: [15], [], 120;
    extensions_that_stall_cost_no_lease: [15], [], 120;
    calls_that_stall_while_connecting_hold_nobody_up: [7, 15], [Need::Link, Need::Reconnect], 240;
    calls_that_are_left_while_they_go_on_leave_nothing: [15, 16], [Need::Link], 240;
}

/// Waits until this client owes nothing, the lines are empty, no task is left, and the store has counters only.
async fn until_nothing_is_left(ctx: &Ctx, locks: &Locks, names: &[String], tasks: usize) -> Verdict {
    for text in names {
        ctx.until_line_has(locks.backend(), &name(text)?, 0).await?;
    }
    ctx.nothing_left(std::slice::from_ref(locks)).await?;
    ctx.eventually("no task is left", async || Ok((alive_tasks() <= tasks).then_some(()))).await
}

/// A round trip on this machine, now.
async fn trip(locks: &Locks, name: &str) -> Verdict<Duration> {
    let began = std::time::Instant::now();
    for _ in 0..20 {
        locks.inspect(name).await?;
    }
    Ok(began.elapsed() / 20)
}

/// Thousands of acquires dropped at random moments, among others that run to their end.
async fn cancelled_acquires_leave_nothing(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let names: Vec<_> = (0..3).map(|i| format!("dropped-{i}")).collect();
    locks.mutex(&names[0])?.acquire().await?.release().await?;
    ctx.eventually("the first cycle is over", async || Ok((locks.pending() == 0).then_some(()))).await?;
    let alive = alive_tasks();
    let trip = trip(&locks, &names[0]).await?;
    let (mut tasks, each) = (tokio::task::JoinSet::new(), ctx.volume(2_000) / 8);
    for _ in 0..8 {
        let (locks, names, mut rng) = (locks.clone(), names.clone(), ctx.rng());
        tasks.spawn(async move {
            let (mut cut, mut done, mut range) = (0_u64, 0_u64, trip * 4);
            while cut < each {
                let i = cut + done;
                ensure!(
                    i < each * 40,
                    "{cut} were cut and {done} came through: the moments are badly chosen"
                );
                let lock = locks.mutex(&names[rng.index(names.len())])?;
                let lock = if i % 5 == 0 { lock.unfair() } else { lock };
                // What was cut goes on in the background: a store that is slower than these moments must not fall
                // behind without end, or nothing would ever come through.
                while locks.pending() > 16 {
                    tokio::time::sleep(trip).await;
                }
                // The range follows the machine, so that about half of them are cut.
                match cut_at(lock.acquire(), rng.time(range)).await {
                    None => {
                        cut += 1;
                        // On a busy machine nothing comes through within milliseconds: it may take long until the first has.
                        let most = if done == 0 { PATIENCE } else { Duration::from_millis(20) };
                        range = (range * 11 / 10).min(most);
                    }
                    Some(guard) => {
                        let guard = guard?;
                        done += 1;
                        range = (range * 9 / 10).max(Duration::from_nanos(100));
                        if rng.below(2) == 0 {
                            guard.release().await?;
                        }
                    }
                }
            }
            Ok::<_, Stop>((cut, done))
        });
    }
    let counts = all(tasks).await?;
    let cut = counts.iter().map(|(cut, _)| cut).sum::<u64>();
    let done = counts.iter().map(|(_, done)| done).sum::<u64>();
    ensure!(cut >= ctx.volume(2_000) && done > 0, "{cut} were cut and {done} came through");
    until_nothing_is_left(ctx, &locks, &names, alive).await
}

/// Releases dropped half way go on in the background.
async fn cancelled_releases_leave_nothing(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let names = vec!["given-back".to_owned()];
    locks.mutex(&names[0])?.acquire().await?.release().await?;
    let alive = alive_tasks();
    let (mut rng, trip) = (ctx.rng(), trip(&locks, &names[0]).await?);
    for _ in 0..ctx.volume(300) {
        let guard = locks.mutex(&names[0])?.acquire().await?;
        // Whether it was cut or not makes no difference to anybody.
        let _cut = cut_at(guard.release(), rng.time(trip * 2)).await;
    }
    until_nothing_is_left(ctx, &locks, &names, alive).await
}

/// Of many waiters with time limits those that give up leave the line, and the others are served in their order.
async fn impatient_waiters_leave(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let text = "impatient".to_owned();
    // The first may open a connection, which has tasks of its own.
    for locks in [&locks, &other] {
        locks.mutex(&text)?.acquire().await?.release().await?;
    }
    for round in 0..ctx.many(2) {
        let alive = alive_tasks();
        let holder = other.mutex(&text)?.acquire().await?;
        let served = Arc::new(tokio::sync::Mutex::new(Vec::new()));
        let gone = Arc::new(AtomicUsize::new(0));
        let (mut waiters, mut rng) = (tokio::task::JoinSet::new(), ctx.rng());
        for i in 0..64_usize {
            let patient = i % 3 == 0;
            let limit = if patient { PATIENCE * 2 } else { rng.time(ctx.units(1)) };
            let (lock, served, gone) = (locks.mutex(&text)?, Arc::clone(&served), Arc::clone(&gone));
            waiters.spawn(async move {
                if let Some(guard) = in_time(lock.acquire_timeout(limit).await)? {
                    served.lock().await.push((i, guard.token()?));
                    guard.release().await?;
                } else {
                    gone.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, onelock_core::Error>(())
            });
        }
        // Those without patience are gone before the lock comes free.
        let patient = (0..64).filter(|i| i % 3 == 0).count();
        ctx.eventually("the impatient have left", async || {
            Ok((gone.load(Ordering::SeqCst) == 64 - patient).then_some(()))
        })
        .await?;
        ctx.until_line_has(other.backend(), &name(&text)?, 1 + patient).await?;
        holder.release().await?;
        while let Some(ended) = ctx.soon("a waiter ends", waiters.join_next()).await? {
            ended??;
        }
        let served = std::mem::take(&mut *served.lock().await);
        ensure_eq!(served.len(), patient, "round {round}: waiters served");
        ensure!(served.windows(2).all(|w| w[0].1 < w[1].1), "round {round}: served out of order: {served:?}");
        until_nothing_is_left(ctx, &locks, std::slice::from_ref(&text), alive).await?;
    }
    ensure!(locks.settings().ttl == LONG, "long leases: nothing ended by itself");
    Ok(())
}

/// Runs a future until it has been pending so many times; its output when it ends before.
async fn advanced<T>(mut future: Pin<&mut impl Future<Output = T>>, steps: usize) -> Option<T> {
    let mut pending = 0;
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            pending += 1;
            if pending == steps { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// A call that is neither asked again nor dropped, as in a `select!` whose other branch has work to do, keeps no other
/// call of its client from going on, at whatever step it stalls: with nothing open yet, and later.
async fn calls_that_stall_hold_nobody_up(ctx: &Ctx) -> Verdict {
    for warm in [false, true] {
        for steps in 1..=8 {
            let locks = ctx.locks().await?;
            if warm {
                locks.mutex("warm")?.acquire().await?.release().await?;
            }
            let others = async |what: &str| {
                let cycle = async { locks.mutex("moving")?.acquire().await?.release().await };
                let text = format!("another name, while {what} stalls after {steps} steps (warm: {warm})");
                ctx.soon(&text, cycle).await?.map_err(|error| Stop::failed(format!("{text}: {error}")))
            };
            let lock = locks.mutex("still")?;
            let mut acquire = Box::pin(lock.acquire());
            let guard = match advanced(acquire.as_mut(), steps).await {
                Some(guard) => guard?,
                None => {
                    others("an acquire").await?;
                    acquire.await?
                }
            };
            let mut release = Box::pin(guard.release());
            match advanced(release.as_mut(), steps).await {
                Some(released) => released?,
                None => {
                    others("a release").await?;
                    release.await?;
                }
            }
        }
    }
    Ok(())
}

/// What is held stays held for longer than a lease while another call of its client stalls, at whatever moment
/// between two renewals that began.
async fn calls_that_stall_cost_no_lease(ctx: &Ctx) -> Verdict {
    let (lease, mut clients) = (ctx.units(6), tokio::task::JoinSet::new());
    for i in 0..12_u32 {
        let locks = ctx.locks_for(lease).await?;
        clients.spawn(async move {
            let guard = locks.mutex(format!("kept-{i}"))?.acquire().await?;
            // Two renewals or three fall into this time, for each client another part of it.
            tokio::time::sleep(lease * i / 12).await;
            let lock = locks.mutex(format!("still-{i}"))?;
            let mut acquire = Box::pin(lock.acquire());
            let through = advanced(acquire.as_mut(), 1 + i as usize % 3).await;
            tokio::time::sleep(lease * 3 / 2).await;
            ensure!(guard.is_held(), "client {i} has lost what it held");
            drop((through, acquire));
            guard.release().await?;
            Verdict::Ok(())
        });
    }
    all(clients).await.map(drop)
}

/// The same where more calls stall than a client has connections. Dropped they leave nothing.
async fn many_calls_that_stall_cost_no_lease(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(6);
    let locks = ctx.locks_for(lease).await?;
    let guard = locks.mutex("kept")?.acquire().await?;
    let alive = alive_tasks();
    let names: Vec<_> = (0..40).map(|i| format!("still-{i}")).collect();
    let still = names.iter().map(|name| locks.mutex(name)).collect::<Result<Vec<_>, _>>()?;
    let mut acquires: Vec<_> = still.iter().map(|lock| Box::pin(lock.acquire())).collect();
    for acquire in &mut acquires {
        advanced(acquire.as_mut(), 1).await.transpose()?;
    }
    tokio::time::sleep(lease * 3 / 2).await;
    ensure!(guard.is_held(), "what was held is lost");
    drop(acquires);
    guard.release().await?;
    until_nothing_is_left(ctx, &locks, &names, alive).await
}

/// The same of calls that renew: they may not keep what the renewals of everything else are sent by.
async fn extensions_that_stall_cost_no_lease(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(6);
    let locks = ctx.locks_for(lease).await?;
    let kept = locks.mutex("kept")?.acquire().await?;
    let mut guards = Vec::new();
    for i in 0..20 {
        guards.push(locks.mutex(format!("longer-{i}"))?.acquire().await?);
    }
    let mut still = Vec::new();
    for guard in &guards {
        let mut extension = Box::pin(guard.extend(lease));
        match advanced(extension.as_mut(), 1).await {
            Some(extended) => extended?,
            None => still.push(extension),
        }
    }
    tokio::time::sleep(lease * 3 / 2).await;
    ensure!(kept.is_held(), "what was held is lost");
    for extension in still {
        extension.await?;
    }
    for guard in guards {
        guard.release().await?;
    }
    kept.release().await?;
    Ok(())
}

/// The same while the store cannot be reached: who stalls while it connects again keeps nobody from that.
async fn calls_that_stall_while_connecting_hold_nobody_up(ctx: &Ctx) -> Verdict {
    for steps in 1..=6 {
        let link = Link::new();
        let locks = ctx.locks_by(&link, LONG, LONG).await?;
        locks.mutex("warm")?.acquire().await?.release().await?;
        link.set(Fault::Reset);
        let lock = locks.mutex("still")?.retry(patient());
        let mut acquire = Box::pin(lock.acquire());
        ensure!(advanced(acquire.as_mut(), steps).await.is_none(), "acquired from a store that is cut off");
        link.heal();
        let lock = locks.mutex("moving")?.retry(patient());
        let cycle = async { lock.acquire().await?.release().await };
        ctx.soon(&format!("another name, while an acquire stalls after {steps} steps"), cycle).await??;
        acquire.await?.release().await?;
    }
    Ok(())
}

/// Who leaves a call that has stalled, at whatever step a task of the client goes on with it, leaves nothing behind.
async fn calls_that_are_left_while_they_go_on_leave_nothing(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    for _ in 0..ctx.many(2) {
        let locks = ctx.locks_by(&link, LONG, LONG).await?;
        locks.mutex("warm")?.acquire().await?.release().await?;
        let names: Vec<_> = (0..48).map(|i| format!("left-{i}")).collect();
        // So late that a call of two steps or more is found between them.
        let late = Duration::from_millis(50);
        link.set(Fault::Delay(late));
        let (mut callers, mut rng) = (tokio::task::JoinSet::new(), ctx.rng());
        for name in &names {
            let (lock, time) = (locks.mutex(name)?, rng.time(late * 16));
            callers.spawn(async move {
                let mut acquire = Box::pin(lock.acquire());
                let through = advanced(acquire.as_mut(), 1).await.transpose();
                tokio::time::sleep(time).await;
                through.map(drop)
            });
        }
        all(callers).await?;
        link.heal();
        // As many tasks as there are connections: the way has some for each.
        until_nothing_is_left(ctx, &locks, &names, usize::MAX).await?;
    }
    Ok(())
}
