//! What things cost, in requests that the store has seen.

use std::time::{Duration, Instant};

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, PATIENCE, name, patient};
use crate::verdict::{Context as _, Verdict};
use crate::wear::BUSY;
use crate::worker::Worker;
use crate::{ensure, ensure_eq};

table! {
    uncontended_cycle_costs_two: [], [Need::Requests], 30;
    busy_try_costs_one: [], [Need::Requests], 30;
    renewals_are_batched: [7], [Need::Requests, Need::Thousands], 120;
    idle_waiters_are_quiet: [9, 10], [Need::Requests, Need::Line, Need::Can("push"), Need::Thousands], 180;
    waiters_share_a_connection: [9, 10], [Need::Connections, Need::Can("fifo")], 120;
    nothing_leaks: [16], [Need::Processes], 120;
}

/// Acquire and release of a free lock are exactly two requests, in every mode; those of a set of three are six.
async fn uncontended_cycle_costs_two(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    for mode in ctx.modes(3)? {
        let lock = locks.lock("free", mode)?;
        // The first may have to teach the server its scripts.
        lock.acquire().await?.release().await?;
        for acquire_by_try in [false, true] {
            let cost = of_twenty(ctx, || async {
                let guard = if acquire_by_try {
                    lock.try_acquire().await?.context("a free lock")?
                } else {
                    lock.acquire().await?
                };
                Ok(guard.release().await?)
            });
            ensure_eq!(cost.await?, 40, "requests for 20 cycles in mode {}", lock.mode());
        }
    }
    let set = locks.all(["free/1", "free/2", "free/3"])?;
    set.acquire().await?.release().await?;
    let cost = of_twenty(ctx, || async { Ok(set.acquire().await?.release().await?) });
    ensure_eq!(cost.await?, 120, "requests for 20 cycles of a set of three");
    Ok(())
}

/// A try on a busy lock is one request.
async fn busy_try_costs_one(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let _held = locks.mutex("busy")?.acquire().await?;
    let lock = other.mutex("busy")?;
    ensure!(lock.try_acquire().await?.is_none(), "held twice");
    let cost = of_twenty(ctx, || async {
        ensure!(lock.try_acquire().await?.is_none(), "held twice");
        Ok(())
    });
    ensure_eq!(cost.await?, 20, "requests for 20 tries");
    Ok(())
}

/// The least number of requests that `work` took, done twenty times, of three: now and then a client asks something for itself, such as
/// whether a connection still lives.
async fn of_twenty<F: Future<Output = Verdict>>(ctx: &Ctx, work: impl Fn() -> F) -> Verdict<u64> {
    let mut least = u64::MAX;
    for _ in 0..3 {
        let before = ctx.store().requests().await?;
        for _ in 0..20 {
            work().await?;
        }
        least = least.min(ctx.store().requests().await? - before);
    }
    Ok(least)
}

/// A thousand held locks are renewed in a few requests, and all of them are.
async fn renewals_are_batched(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(20);
    let locks = ctx.locks_for(lease).await?;
    let mut guards = Vec::new();
    for i in 0..1000 {
        guards.push(locks.mutex(format!("batched-{i}"))?.acquire().await?);
    }
    let (cost, leases) = over_two(ctx, lease).await?;
    ensure!(guards.iter().all(onelock_core::client::guard::Guard::is_held), "a lock was lost");
    // One by one it would be three thousand a lease.
    let most = leases * ctx.harness().upkeep_cost();
    ensure!(cost <= most, "{cost} requests to keep 1000 locks for {leases} leases");
    ensure!(cost > 0, "nothing was renewed");
    Ok(())
}

/// The requests over two leases, and how many leases that were: the last in part.
async fn over_two(ctx: &Ctx, lease: Duration) -> Verdict<(u64, u64)> {
    let (before, since) = (ctx.store().requests().await?, ctx.now());
    tokio::time::sleep(lease * 2).await;
    let cost = ctx.store().requests().await? - before;
    Ok((cost, u64::try_from(ctx.now().saturating_since(since).as_nanos() / lease.as_nanos())? + 1))
}

/// While a thousand waiters idle the store sees nothing but their renewals, batched, and now and then the head asking.
async fn idle_waiters_are_quiet(ctx: &Ctx) -> Verdict {
    let (holder, locks) = (ctx.locks().await?, ctx.locks_for(ctx.units(20)).await?);
    let held = holder.mutex("popular")?.acquire().await?;
    let waiters = wait_in_line(ctx, &holder, &locks, 1000).await?;
    let lease = ctx.units(20);
    let mut loud = Vec::new();
    // On a busy machine some still join, and after a standstill all join anew. Who is never quiet is loud each time.
    while loud.len() < 3 {
        until_settled(ctx).await?;
        let (cost, leases) = over_two(ctx, lease).await?;
        if cost <= leases * 100 {
            break;
        }
        loud.push(format!("{cost} requests in {leases} leases"));
    }
    ensure!(loud.len() < 3, "1000 idle waiters: {}", loud.join(", "));
    ctx.until_line_has(holder.backend(), &name("popular")?, 1001).await?;
    drop(waiters);
    held.release().await?;
    Ok(())
}

/// Waits until those who have joined have asked what they had to: on a busy machine a crowd takes its time. One that never
/// comes to rest is found out by what is counted then.
async fn until_settled(ctx: &Ctx) -> Verdict {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let before = ctx.store().requests().await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        // A renewal may fall into it.
        if ctx.store().requests().await? - before < 20 {
            break;
        }
    }
    Ok(())
}

/// A thousand waiters need no more connections than one.
async fn waiters_share_a_connection(ctx: &Ctx) -> Verdict {
    let (holder, locks) = (ctx.locks().await?, ctx.locks().await?);
    let _held = holder.mutex("popular")?.acquire().await?;
    let one = wait_in_line(ctx, &holder, &locks, 1).await?;
    let before = ctx.store().connections().await?;
    let many = wait_in_line(ctx, &holder, &locks, 1000).await?;
    let after = ctx.store().connections().await?;
    ensure_eq!(after, before, "connections with 1001 waiters and with one");
    // A client of its own for the holder, one for the waiters: each may have a second for what is pushed.
    ensure!(after <= 4, "{after} connections for two clients");
    drop((one, many));
    Ok(())
}

/// So many more waiters; dropping what it gives ends their waiting.
async fn wait_in_line(
    ctx: &Ctx,
    holder: &onelock_core::client::Locks,
    locks: &onelock_core::client::Locks,
    count: usize,
) -> Verdict<tokio::task::JoinSet<()>> {
    let popular = name("popular")?;
    let line = holder.inspect("popular").await?;
    let before = line.holders.len() + line.waiters.len();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..count {
        // On a busy machine so many joins may fail for longer than a client tolerates by default.
        let lock = locks.mutex("popular")?.retry(patient());
        waiters.spawn(async move {
            if let Ok(guard) = lock.acquire().await {
                guard.lost().await;
            }
        });
    }
    ctx.until_line_has(holder.backend(), &popular, before + count).await?;
    // Whoever has just joined asks a few times more.
    tokio::time::sleep(ctx.units(1).min(LONG) + Duration::from_millis(50)).await;
    Ok(waiters)
}

/// A process that acquires, waits, gives up, cancels and drops for long has no more files, tasks and memory in use than at
/// the beginning.
async fn nothing_leaks(ctx: &Ctx) -> Verdict {
    /// At once; a worker answers within the patience of a case.
    const STEP: u64 = 320;
    /// What pools may have kept back at the beginning.
    const FILES: u64 = 8;
    const TASKS: u64 = 8;
    /// In KiB: what an allocator may keep.
    const MEMORY: u64 = 10 << 10;
    let other = ctx.locks().await?;
    let _held = other.mutex(BUSY)?.acquire().await?;
    let mut rng = ctx.rng();
    let mut worker = Worker::start(ctx, LONG)?;
    for _ in 0..2 {
        worker.wear(STEP, rng.bits()).await?;
    }
    let before = worker.wear(STEP, rng.bits()).await?;
    let mut cycles = 0;
    while cycles < ctx.cycles(2 * STEP) {
        worker.wear(STEP, rng.bits()).await?;
        cycles += STEP;
    }
    ctx.notes().cycles(cycles);
    let end = Instant::now() + PATIENCE;
    // What is given back in the background takes a moment.
    loop {
        let now = worker.wear(0, 0).await?;
        if now.files <= before.files + FILES
            && now.tasks <= before.tasks + TASKS
            && now.resident <= before.resident + MEMORY
        {
            return Ok(());
        }
        ensure!(Instant::now() < end, "in use after {cycles} cycles: {now:?}, at the beginning: {before:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
