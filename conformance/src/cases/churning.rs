//! Many clients and tasks at once; the history of all holds is checked afterwards.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;
use onelock_core::client::retry::Retry;
use onelock_core::{Clock, Timestamp};

use crate::case::{Need, table};
use crate::ctx::{Ctx, PATIENCE, in_time};
use crate::history::{self, Fenced, Hold};
use crate::verdict::{Stop, Verdict};
use crate::{ensure, ensure_eq};

table! {
    churn_exclusive: [1, 3, 4], [Need::Can("fencing")], 240;
    churn_modes: [1, 3, 4], [Need::Can("fencing"), Need::Can("shared"), Need::Can("permits")], 240;
    churn_with_lost_leases: [4, 5, 6], [Need::Can("fencing")], 240;
    crowd_is_served_in_order: [3, 10], [Need::Can("fifo"), Need::Can("fencing")], 240;
    fenced_resource_survives_pauses: [4], [Need::Can("fencing")], 240;
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

/// Holds for a moment and gives back; what is certain about the hold.
async fn hold(
    clock: &Arc<dyn Clock>,
    lock: &Lock,
    guard: Guard,
    who: (u32, u32),
    asked: Timestamp,
    time: Duration,
) -> Verdict<Hold> {
    let (from, token) = (clock.now(), guard.token());
    let deadline = guard.deadline();
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
    // Renewals may have moved the deadline; the last one known before the release counts.
    let deadline = deadline.max(guard.deadline());
    let until = clock.now().min(deadline);
    match guard.release().await {
        Ok(()) => {}
        Err(error) if error.kind() == onelock_core::ErrorKind::Lost => {}
        Err(error) => return Err(error.into()),
    }
    let (lock_number, client) = who;
    let token = token.map_or(0, onelock_core::FencingToken::get);
    let (asked, from) = (nanos(asked), nanos(from));
    Ok(Hold {
        lock: lock_number,
        client,
        mode: lock.mode(),
        token,
        asked,
        from,
        until: nanos(until).max(from),
    })
}

/// Fails with the first violation, as a readable timeline.
fn verdict(holds: &[Hold], fifo: bool) -> Verdict {
    // A guard that was lost before its token was read proves nothing.
    let holds: Vec<_> = holds.iter().copied().filter(|hold| hold.token > 0).collect();
    let found = history::check(&holds).or_else(|| if fifo { history::fifo(&holds) } else { None });
    found.map_or(Ok(()), |violation| Err(Stop::failed(violation)))
}

/// Eight tasks on three clients take four locks again and again; the holds never overlap and tokens grow.
async fn churn_exclusive(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?, ctx.locks().await?];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u32 {
        let (locks, clock) = (clients[task as usize % 3].clone(), ctx.clock());
        let (mut rng, cycles) = (ctx.rng(), ctx.cycles(2000) / 8);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for _ in 0..cycles {
                let number = u32::try_from(rng.below(4))?;
                let lock = locks.mutex(format!("churn-{number}"))?;
                let asked = clock.now();
                let guard = lock.acquire().await?;
                let time =
                    if rng.below(8) == 0 { rng.time(Duration::from_millis(2)) } else { Duration::ZERO };
                holds.push(hold(&clock, &lock, guard, (number, task), asked, time).await?);
            }
            Ok::<_, Stop>(holds)
        });
    }
    let mut holds = Vec::new();
    while let Some(done) = tasks.join_next().await {
        holds.extend(done??);
    }
    ensure_eq!(holds.len() as u64, ctx.cycles(2000), "cycles");
    ctx.notes().cycles(holds.len() as u64);
    verdict(&holds, ctx.harness().capabilities().fifo)?;
    ctx.nothing_left(&clients).await
}

/// The same with all modes, waiting, trying, unfair and with time limits, on two names.
async fn churn_modes(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?, ctx.locks().await?];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..9_u32 {
        let (locks, clock) = (clients[task as usize % 3].clone(), ctx.clock());
        let (mut rng, cycles) = (ctx.rng(), ctx.volume(1200) / 9);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for _ in 0..cycles {
                let number = u32::try_from(rng.below(2))?;
                let text = format!("modes-{number}");
                let lock = match rng.below(5) {
                    0 => locks.mutex(&text)?,
                    1 | 2 => locks.rwlock(&text)?.read(),
                    3 => locks.semaphore(&text, 2)?,
                    _ => locks.semaphore(&text, 3)?,
                };
                let asked = clock.now();
                let guard = match rng.below(6) {
                    0 => lock.try_acquire().await?,
                    1 => in_time(lock.acquire_timeout(rng.time(Duration::from_millis(3))).await)?,
                    2 => in_time(lock.clone().unfair().acquire_timeout(Duration::from_millis(20)).await)?,
                    _ => Some(lock.acquire().await?),
                };
                if let Some(guard) = guard {
                    let time =
                        if rng.below(4) == 0 { rng.time(Duration::from_millis(2)) } else { Duration::ZERO };
                    holds.push(hold(&clock, &lock, guard, (number, task), asked, time).await?);
                }
            }
            Ok::<_, Stop>(holds)
        });
    }
    let mut holds = Vec::new();
    while let Some(done) = tasks.join_next().await {
        holds.extend(done??);
    }
    ensure!(holds.len() as u64 > ctx.volume(500), "only {} holds", holds.len());
    verdict(&holds, false)?;
    ctx.nothing_left(&clients).await
}

/// Never gives up for errors or lost places.
fn patient() -> Retry {
    Retry::default().errors(u32::MAX)
}

/// Holders that sleep through their fixed lease really lose it, and still no two hold at once.
async fn churn_with_lost_leases(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(1);
    let clients = [ctx.locks_for(lease).await?, ctx.locks_for(lease).await?];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6_u32 {
        let (locks, clock) = (clients[task as usize % 2].clone(), ctx.clock());
        let (mut rng, cycles) = (ctx.rng(), ctx.volume(24) / 6);
        tasks.spawn(async move {
            let (mut holds, mut lost) = (Vec::new(), 0_u32);
            for cycle in 0..cycles {
                let number = u32::try_from(rng.below(2))?;
                // On a busy machine so short a lease is lost in the line, too: that is not what the case is about.
                let lock = locks.mutex(format!("lost-{number}"))?.auto_renew(false).retry(patient());
                let asked = clock.now();
                let guard = lock.acquire().await?;
                let time = if cycle % 2 == 0 { lease + rng.time(lease) } else { rng.time(lease / 4) };
                lost += u32::from(time > lease);
                holds.push(hold(&clock, &lock, guard, (number, task), asked, time).await?);
            }
            Ok::<_, Stop>((holds, lost))
        });
    }
    let (mut holds, mut lost) = (Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        let (some, of_these) = done??;
        holds.extend(some);
        lost += of_these;
    }
    ensure!(lost > 0, "no lease was lost: the run proves nothing");
    verdict(&holds, false)
}

/// Two hundred waiters on one lock are served one after the other in the order of the line.
async fn crowd_is_served_in_order(ctx: &Ctx) -> Verdict {
    let clients = [ctx.locks().await?, ctx.locks().await?];
    let counted = ctx.harness().lacks(Need::Requests).is_none();
    let (clock, rounds) = (ctx.clock(), ctx.volume(2));
    let before = if counted { ctx.store().requests().await? } else { 0 };
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..200_u32 {
        let lock = clients[task as usize % 2].mutex("crowd")?;
        let clock = Arc::clone(&clock);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for _ in 0..rounds {
                let asked = clock.now();
                let guard = lock.acquire().await?;
                holds.push(hold(&clock, &lock, guard, (0, task), asked, Duration::ZERO).await?);
            }
            Ok::<_, Stop>(holds)
        });
    }
    let mut holds = Vec::new();
    while let Some(done) = tasks.join_next().await {
        holds.extend(done??);
    }
    verdict(&holds, true)?;
    if counted && ctx.harness().capabilities().push {
        let (cost, hand_overs) = (ctx.store().requests().await? - before, holds.len() as u64);
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
    let lease = ctx.units(1);
    let resource = Arc::new(Fenced::default());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..5_u64 {
        let locks = ctx.locks_for(lease).await?;
        let (resource, mut rng) = (Arc::clone(&resource), ctx.rng());
        let cycles = ctx.volume(6);
        tasks.spawn(async move {
            let mut acknowledged = Vec::new();
            for cycle in 0..cycles {
                let lock = locks.mutex("fenced")?.auto_renew(false).retry(patient());
                let guard = lock.acquire().await?;
                let Ok(token) = guard.token() else { continue };
                let (mut fenced, mut unfenced) = resource.read(token);
                // Every second time it sleeps too long, and does not look at the clock before it writes.
                let time = if cycle % 2 == 0 { lease * 2 + rng.time(lease) } else { rng.time(lease / 4) };
                tokio::time::sleep(time).await;
                let item = task * 1000 + cycle;
                fenced.push(item);
                unfenced.push(item);
                if resource.write(token, fenced, unfenced) {
                    acknowledged.push(item);
                }
            }
            Ok::<_, Stop>(acknowledged)
        });
    }
    let mut acknowledged = Vec::new();
    while let Some(done) = ctx.soon_for(PATIENCE * 4, "the writers end", tasks.join_next()).await? {
        acknowledged.extend(done??);
    }
    let (mut fenced, unfenced) = resource.lists();
    ensure!(resource.refused() > 0, "no write came late: the run proves nothing");
    fenced.sort_unstable();
    acknowledged.sort_unstable();
    ensure_eq!(fenced, acknowledged, "the fenced list and what was acknowledged");
    let written = 5 * ctx.volume(6);
    ensure!((unfenced.len() as u64) < written, "the twin lost nothing: the run proves nothing");
    Ok(())
}
