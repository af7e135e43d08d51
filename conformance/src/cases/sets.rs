//! Sets of locks: all or none, and no circle of waiters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::LossReason;
use tokio::task::JoinSet;

use super::alone::{Alone, NAMES};
use crate::case::table;
use crate::ctx::{Ctx, LONG, PATIENCE, all, name, patient, within};
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq};

table! {
    crossing_sets_all_end: [], [], 120;
    sets_are_all_or_none: [], [], 60;
}

/// So many clients do crossing sets have.
const CLIENTS: u64 = 50;

/// Sets of random names in random order never wait for each other in a circle; each client gets its turns, and nothing is left.
async fn crossing_sets_all_end(ctx: &Ctx) -> Verdict {
    let (alone, mut clients, mut tasks) = (Arc::new(Alone::default()), Vec::new(), JoinSet::new());
    let backends = [ctx.backend().await?, ctx.backend().await?];
    for client in 0..CLIENTS {
        let locks = ctx.client(Arc::clone(&backends[client as usize % 2]), LONG, LONG)?;
        clients.push(locks.clone());
        let (alone, mut rng, turns) = (Arc::clone(&alone), ctx.rng(), ctx.volume(2));
        tasks.spawn(async move {
            let (mut done, mut gave_up) = (0, 0_u32);
            while done < turns {
                let drawn: Vec<_> = (0..2 + rng.index(3)).map(|_| rng.index(NAMES)).collect();
                let which: BTreeSet<_> = drawn.iter().copied().collect();
                let lock = |i: &usize| Ok::<_, Stop>(locks.mutex(format!("set-{i}"))?.retry(patient()));
                let set = if rng.below(2) == 0 {
                    locks.all(drawn.iter().map(|i| format!("set-{i}")))?
                } else {
                    // Backwards: the set puts them in order.
                    locks.all_of(which.iter().rev().map(lock).collect::<Verdict<Vec<_>>>()?)?
                };
                let limit =
                    if rng.below(4) == 0 { rng.time(Duration::from_millis(20)) } else { PATIENCE * 3 };
                match set.acquire_timeout(limit).await {
                    Ok(Some(set)) => {
                        let inside = alone.enter(which.into_iter().collect());
                        tokio::task::yield_now().await;
                        drop(inside);
                        set.release().await?;
                        done += 1;
                    }
                    Err(error) if !error.is_retryable() => return Err(error.into()),
                    _ => gave_up += 1,
                }
            }
            Ok::<_, Stop>(gave_up)
        });
    }
    let limit = PATIENCE * 2 * u32::try_from(ctx.volume(1))?;
    let gave_up = within(limit, "every client has its turns", all(tasks)).await??;
    ensure!(gave_up.iter().sum::<u32>() > 0, "no set was given up half way: the run proves nothing");
    alone.check()?;
    ctx.nothing_left(&clients).await
}

/// A set that cannot be completed gives back what it took, and one that loses a lock stops all of its work.
async fn sets_are_all_or_none(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let set = locks.all(["all-c", "all-a", "all-b"])?;
    let free = async |text: &str| {
        ctx.soon(text, other.mutex(text)?.acquire()).await??.release().await?;
        Ok::<_, Stop>(())
    };
    let held = other.mutex("all-c")?.acquire().await?;
    ensure!(set.try_acquire().await?.is_none(), "a try of a set with a busy lock");
    free("all-a").await?;
    ensure!(set.acquire_timeout(ctx.units(1)).await?.is_none(), "a set with a busy lock");
    free("all-b").await?;
    // Dropped while it waits for the last.
    ensure!(tokio::time::timeout(ctx.units(1), set.acquire()).await.is_err(), "a set with a busy lock");
    free("all-a").await?;
    held.release().await?;

    let short = locks.mutex("all-b")?.ttl(ctx.units(3))?.auto_renew(false);
    let set = locks.all_of([locks.mutex("all-c")?, short, locks.mutex("all-a")?])?.acquire().await?;
    let alone = Alone::default();
    let inside = alone.enter(vec![0]);
    let next = async {
        let next = other.mutex("all-b")?.acquire().await?;
        drop(alone.enter(vec![0]));
        Ok::<_, Stop>(next)
    };
    let work = set.run(async {
        let _inside = inside;
        std::future::pending::<()>().await;
    });
    let (stopped, next) =
        tokio::join!(ctx.soon("the work is stopped", work), ctx.soon("the lost lock goes on", next));
    let stopped = stopped?.err().context("the work cannot end by itself")?;
    ensure!(stopped.to_string().contains("all-b"), "the lost lock is not named: {stopped}");
    alone.check()?;
    ensure_eq!(set.lost().await, (name("all-b")?, LossReason::Expired), "what was lost");
    ensure!(other.mutex("all-a")?.try_acquire().await?.is_none(), "the guards are still there");
    drop(set);
    free("all-a").await?;
    free("all-c").await?;
    next??.release().await?;
    ctx.nothing_left(&[locks, other]).await
}
