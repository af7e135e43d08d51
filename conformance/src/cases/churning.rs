//! Many clients and tasks at once; the history of all holds is checked afterwards.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;
use onelock_core::{Clock, ErrorKind, Timestamp};
use tokio::task::JoinSet;

use crate::case::{Need, table};
use crate::churn;
use crate::ctx::{Ctx, PATIENCE, all, in_time, patient, within};
use crate::fenced::Fenced;
use crate::history::{self, KnownHold};
use crate::rng::Rng;
use crate::verdict::{Stop, Verdict};
use crate::{ensure, ensure_eq};

table! {
    churn_exclusive: [1, 3, 4], [Need::Can("fencing")], 240;
    churn_modes: [1, 3, 4], [Need::Can("fencing"), Need::Can("shared"), Need::Can("permits")], 240;
    churn_with_lost_leases: [4, 5, 6], [Need::Can("fencing")], 240;
    crowd_is_served_in_order: [3, 10], [Need::Can("fifo"), Need::Can("fencing")], 240;
    fenced_resource_survives_pauses: [4], [Need::Can("fencing")], 240;
}

/// A task that takes locks again and again.
struct Task {
    number: u32,
    locks: Locks,
    clock: Arc<dyn Clock>,
    rng: Rng,
}

impl Task {
    /// Holds for `time` and gives back; what is certain about the hold.
    async fn hold(
        &self,
        (number, lock): (u32, &Lock),
        guard: Guard,
        asked: Timestamp,
        time: Duration,
    ) -> Verdict<KnownHold> {
        let who = (number, self.number, lock.mode());
        match churn::hold(&self.clock, guard, who, asked, time).await {
            (_, Err(error)) if error.kind() != ErrorKind::Lost => Err(error.into()),
            (hold, _) => Ok(hold),
        }
    }

    /// No time, or once in so many times a short one.
    fn moment(&mut self, once_in: u64) -> Duration {
        if self.rng.below(once_in) == 0 { self.rng.time(Duration::from_millis(2)) } else { Duration::ZERO }
    }
}

/// What the work of so many tasks gives, spread over these clients.
async fn work_of<T: Send + 'static, F: Future<Output = Verdict<Vec<T>>> + Send + 'static>(
    ctx: &Ctx,
    clients: &[Locks],
    tasks: u32,
    work: impl Fn(Task) -> F,
) -> Verdict<Vec<T>> {
    let mut working = JoinSet::new();
    for number in 0..tasks {
        let locks = clients[number as usize % clients.len()].clone();
        working.spawn(work(Task { number, locks, clock: ctx.clock(), rng: ctx.rng() }));
    }
    Ok(all(working).await?.into_iter().flatten().collect())
}

/// Fails with the first violation, as a readable timeline.
fn verdict(holds: &[KnownHold], fifo: bool) -> Verdict {
    // A guard that was lost before its token was read proves nothing.
    let holds: Vec<_> = holds.iter().copied().filter(|hold| hold.token > 0).collect();
    let found = history::check(&holds).or_else(|| if fifo { history::fifo(&holds) } else { None });
    found.map_or(Ok(()), |violation| Err(Stop::failed(violation)))
}

/// Eight tasks on three clients take four locks again and again; the holds never overlap and tokens grow.
async fn churn_exclusive(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?, ctx.locks().await?];
    let cycles = ctx.cycles(2000) / 8;
    let holds = work_of(ctx, &clients, 8, |mut task| async move {
        let mut holds = Vec::new();
        for _ in 0..cycles {
            let number = u32::try_from(task.rng.below(4))?;
            let lock = task.locks.mutex(format!("churn-{number}"))?;
            let asked = task.clock.now();
            let guard = lock.acquire().await?;
            let time = task.moment(8);
            holds.push(task.hold((number, &lock), guard, asked, time).await?);
        }
        Ok(holds)
    });
    let holds = holds.await?;
    ensure_eq!(holds.len() as u64, ctx.cycles(2000), "cycles");
    ctx.notes().cycles(holds.len() as u64);
    verdict(&holds, ctx.harness().capabilities().fifo)?;
    ctx.nothing_left(&clients).await
}

/// The same with all modes, waiting, trying, unfair and with time limits, on two names.
async fn churn_modes(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?, ctx.locks().await?];
    let cycles = ctx.volume(1200) / 9;
    let holds = work_of(ctx, &clients, 9, |mut task| async move {
        let mut holds = Vec::new();
        for _ in 0..cycles {
            let number = u32::try_from(task.rng.below(2))?;
            let text = format!("modes-{number}");
            let lock = match task.rng.below(5) {
                0 => task.locks.mutex(&text)?,
                1 | 2 => task.locks.rwlock(&text)?.read(),
                3 => task.locks.semaphore(&text, 2)?,
                _ => task.locks.semaphore(&text, 3)?,
            };
            let asked = task.clock.now();
            let guard = match task.rng.below(6) {
                0 => lock.try_acquire().await?,
                1 => in_time(lock.acquire_timeout(task.rng.time(Duration::from_millis(3))).await)?,
                2 => in_time(lock.clone().unfair().acquire_timeout(Duration::from_millis(20)).await)?,
                _ => Some(lock.acquire().await?),
            };
            if let Some(guard) = guard {
                let time = task.moment(4);
                holds.push(task.hold((number, &lock), guard, asked, time).await?);
            }
        }
        Ok(holds)
    });
    let holds = holds.await?;
    ensure!(holds.len() as u64 > ctx.volume(500), "only {} holds", holds.len());
    verdict(&holds, false)?;
    ctx.nothing_left(&clients).await
}

/// Holders that sleep through their fixed lease really lose it, and still no two hold at once.
async fn churn_with_lost_leases(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(1);
    let clients = [ctx.locks_for(lease).await?, ctx.locks_for(lease).await?];
    let cycles = ctx.volume(24) / 6;
    let holds = work_of(ctx, &clients, 6, |mut task| async move {
        let mut holds = Vec::new();
        for cycle in 0..cycles {
            let number = u32::try_from(task.rng.below(2))?;
            // On a busy machine so short a lease is lost in the line, too: that is not what the case is about.
            let lock = task.locks.mutex(format!("lost-{number}"))?.auto_renew(false).retry(patient());
            let asked = task.clock.now();
            let guard = lock.acquire().await?;
            let time = if cycle % 2 == 0 { lease + task.rng.time(lease) } else { task.rng.time(lease / 4) };
            holds.push((task.hold((number, &lock), guard, asked, time).await?, time > lease));
        }
        Ok(holds)
    });
    let (holds, lost): (Vec<_>, Vec<_>) = holds.await?.into_iter().unzip();
    ensure!(lost.contains(&true), "no lease was lost: the run proves nothing");
    verdict(&holds, false)
}

/// Two hundred waiters on one lock are served one after the other in the order of the line.
async fn crowd_is_served_in_order(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?];
    let (rounds, before) = (ctx.volume(2), ctx.requests().await?);
    let holds = work_of(ctx, &clients, 200, |task| async move {
        let (lock, mut holds) = (task.locks.mutex("crowd")?, Vec::new());
        for _ in 0..rounds {
            let asked = task.clock.now();
            let guard = lock.acquire().await?;
            holds.push(task.hold((0, &lock), guard, asked, Duration::ZERO).await?);
        }
        Ok(holds)
    });
    let holds = holds.await?;
    verdict(&holds, true)?;
    if let (true, Some(before), Some(after)) =
        (ctx.harness().capabilities().push, before, ctx.requests().await?)
    {
        let (cost, hand_overs) = (after - before, holds.len() as u64);
        // The rest is for joining the crowd.
        ensure!(
            cost <= hand_overs * ctx.harness().hand_over_cost() + 100,
            "{cost} requests for {hand_overs} hand-overs"
        );
    }
    ctx.nothing_left(&clients).await
}

/// Clients that sleep past their lease and write anyway: a resource that checks tokens loses nothing, its twin does.
async fn fenced_resource_survives_pauses(ctx: &Ctx) -> Verdict {
    const WRITERS: u32 = 5;
    let (lease, cycles, resource) = (ctx.units(1), ctx.volume(6), Arc::new(Fenced::default()));
    let mut clients = Vec::new();
    for _ in 0..WRITERS {
        clients.push(ctx.locks_for(lease).await?);
    }
    let acknowledged = work_of(ctx, &clients, WRITERS, |mut task| {
        let resource = Arc::clone(&resource);
        async move {
            let mut acknowledged = Vec::new();
            for cycle in 0..cycles {
                let lock = task.locks.mutex("fenced")?.auto_renew(false).retry(patient());
                let guard = lock.acquire().await?;
                let Ok(token) = guard.token() else { continue };
                let read = resource.read(token.get());
                // Every second time it sleeps too long, and does not look at the clock before it writes.
                let late = lease * 2 + task.rng.time(lease);
                let time = if cycle % 2 == 0 { late } else { task.rng.time(lease / 4) };
                tokio::time::sleep(time).await;
                let item = (u64::from(task.number) << 32) + cycle;
                if resource.write(token.get(), item, read) {
                    acknowledged.push(item);
                }
            }
            Ok(acknowledged)
        }
    });
    let acknowledged = within(PATIENCE * 4, "the writers end", acknowledged).await??;
    let acknowledged: HashSet<_> = acknowledged.into_iter().collect();
    let (fenced, unfenced) = resource.contents();
    ensure!(resource.refused() > 0, "no write came late: the run proves nothing");
    ensure_eq!(fenced, acknowledged, "the fenced list and what was acknowledged");
    let written = u64::from(WRITERS) * cycles;
    ensure!((unfenced.len() as u64) < written, "the twin lost nothing: the run proves nothing");
    Ok(())
}
