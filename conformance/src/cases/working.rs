//! Exclusion of the work itself: what a holder's worker did must have ended before the next one holds, also where the
//! lease ends under it. What the lock believed does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::Timestamp;
use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;

use crate::case::table;
use crate::ctx::{Ctx, PATIENCE};
use crate::ensure;
use crate::history::nanos;
use crate::trial::pulse::Gaps;
use crate::verdict::{Context as _, Verdict};

table! {
    lost_locks_stay_until_their_guard_goes: [], [], 90;
    work_ends_before_the_next_holds: [], [], 180;
}

const NAME: &str = "worked-on";
/// The worker does this much between two awaits.
const CHUNK: Duration = Duration::from_micros(300);
/// So many ends of a hold must be judged; those in which the process did not run for a while are not.
const JUDGED: u32 = 5;
const ROUNDS: u32 = 60;

/// How a hold ends under its work.
#[derive(Clone, Copy, Debug)]
enum HoldEnd {
    Lease,
    MaxHold,
    Delay,
}

fn ends(ctx: &Ctx) -> Vec<HoldEnd> {
    let mut ends = vec![HoldEnd::Lease, HoldEnd::MaxHold];
    if ctx.harness().capabilities().delay {
        ends.push(HoldEnd::Delay);
    }
    ends
}

impl HoldEnd {
    /// The lock whose hold ends so, and how long the store keeps its entry at least.
    fn lock(self, ctx: &Ctx, locks: &Locks) -> Verdict<(Lock, Duration)> {
        let (short, long) = (ctx.units(3), ctx.units(5));
        let lock = locks.mutex(NAME)?;
        Ok(match self {
            Self::Lease => (lock.ttl(short)?.auto_renew(false), short),
            Self::MaxHold => (lock.ttl(long)?.max_hold(short)?, long),
            Self::Delay => {
                (lock.ttl(short)?.lock_delay(ctx.units(2))?.auto_renew(false), short + ctx.units(2))
            }
        })
    }
}

/// Waits behind the holder; when it held.
async fn next(ctx: &Ctx, locks: &Locks) -> Verdict<tokio::task::JoinHandle<Verdict<(Timestamp, Guard)>>> {
    let (lock, clock) = (locks.mutex(NAME)?, ctx.clock());
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await?;
        Ok((clock.now(), guard))
    });
    if ctx.shows_the_line() {
        ctx.until_line_has(locks.backend(), &crate::ctx::name(NAME)?, 2).await?;
    }
    Ok(waiter)
}

/// While its guard lives a lock that was lost by the clock is not given away before the store's lease and the lock-delay are
/// over, and with a lock-delay not after the guard has gone either, nor after its client has closed.
async fn lost_locks_stay_until_their_guard_goes(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let mut rounds: Vec<_> = ends(ctx).into_iter().map(|end| (end, false)).collect();
    rounds.extend(ctx.harness().capabilities().delay.then_some((HoldEnd::Delay, true)));
    for (end, closes) in rounds {
        let (lock, kept) = end.lock(ctx, &locks)?;
        let sent = ctx.now();
        let mut guard = Some(lock.acquire().await?);
        let waiter = next(ctx, &other).await?;
        let lost = guard.as_ref().context("the guard")?.lost();
        ctx.soon("the loss is told", lost).await?;
        if matches!(end, HoldEnd::Delay) {
            guard = None;
        }
        if closes {
            locks.close(PATIENCE).await?;
        }
        let (from, got) = ctx.soon("the next one holds", waiter).await???;
        let after = from.saturating_since(sent);
        let granularity = other.capabilities().granularity;
        ensure!(
            after + granularity >= kept,
            "{end:?} (closes: {closes}): given away after {after:?} of {kept:?}"
        );
        drop(guard);
        got.release().await?;
    }
    Ok(())
}

/// When `run` is stopped at the end of a hold, the work has ended before the next one holds.
async fn work_ends_before_the_next_holds(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    for end in ends(ctx) {
        let mut judged = 0;
        for round in 0..ROUNDS {
            if let Some(overlap) = one_end(ctx, end, &locks, &other).await? {
                ensure!(overlap.is_zero(), "{end:?}, round {round}: the work went on for {overlap:?}");
                judged += 1;
            }
            if judged == JUDGED {
                break;
            }
        }
        ensure!(
            judged == JUDGED,
            "{end:?}: this process was stopped at {} of {ROUNDS} ends",
            ROUNDS - judged
        );
    }
    Ok(())
}

/// When the work last did something, and its longest pause, in nanoseconds. A thread may stall while others of its
/// process run.
#[derive(Default)]
struct Stamps {
    last: AtomicU64,
    pause: AtomicU64,
}

impl Stamps {
    fn add(&self, now: Timestamp) {
        let now = nanos(now);
        match self.last.swap(now, Ordering::SeqCst) {
            0 => {}
            before => {
                self.pause.fetch_max(now.saturating_sub(before), Ordering::SeqCst);
            }
        }
    }
}

/// How long the work went on under the next one's hold; `None` when this process, or the thread of the work, did not run for
/// part of the time.
async fn one_end(ctx: &Ctx, end: HoldEnd, locks: &Locks, other: &Locks) -> Verdict<Option<Duration>> {
    let (lock, _) = end.lock(ctx, locks)?;
    let guard = lock.acquire().await?;
    let waiter = next(ctx, other).await?;
    let gaps = Gaps::watch();
    let (clock, work) = (ctx.clock(), Arc::new(Stamps::default()));
    let (stamps, at) = (Arc::clone(&work), Arc::clone(&clock));
    let worked = guard.run(async move {
        loop {
            let chunk = Instant::now();
            while chunk.elapsed() < CHUNK {
                std::hint::spin_loop();
            }
            stamps.add(at.now());
            tokio::task::yield_now().await;
        }
    });
    let worked: onelock_core::Result<()> = ctx.soon("the work is stopped", worked).await?;
    ensure!(worked.is_err(), "the work cannot end by itself");
    let returned = clock.now();
    ensure!(work.last.load(Ordering::SeqCst) > 0, "no work was done");
    work.add(returned);
    drop(guard);
    let (from, got) = ctx.soon("the next one holds", waiter).await???;
    got.release().await?;
    // The margin is what a process may be late by.
    let longest = gaps.longest().max(Duration::from_nanos(work.pause.load(Ordering::SeqCst)));
    let stopped = longest > ctx.units(3) / 20;
    Ok((!stopped).then(|| returned.saturating_since(from)))
}
