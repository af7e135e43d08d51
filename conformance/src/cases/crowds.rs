//! Hundreds of held and awaited locks of one client, while its replies are late and lost.

use std::time::Duration;

use onelock_core::Mode;
use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;
use tokio::task::JoinSet;

use crate::case::{Need, table};
use crate::ctx::{Ctx, name, patient};
use crate::faults::{Fault, Link};
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq};

table! {
    a_crowd_outlives_late_and_lost_replies: [7, 9],
        [Need::Link, Need::Can("fifo"), Need::Can("fencing"), Need::Reconnect, Need::Thousands], 180;
}

/// Locks that one client holds, and as many that it waits for.
const CROWD: usize = 300;

fn held_name(i: usize) -> String {
    format!("crowd-held-{i}")
}

fn awaited_name(i: usize) -> String {
    format!("crowd-awaited-{i}")
}

/// A lock of a client, that never gives up for errors.
fn lock(locks: &Locks, text: &str, mode: Mode) -> onelock_core::Result<Lock> {
    Ok(locks.lock(text, mode)?.retry(patient()))
}

/// The faults are much shorter than the leases: no lock may be lost, none may be held twice, and every waiter gets its own.
async fn a_crowd_outlives_late_and_lost_replies(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(40).max(Duration::from_secs(12));
    let link = Link::new();
    let (crowd, other) = (ctx.locks_by(&link, lease, lease).await?, ctx.locks().await?);
    let modes = ctx.modes(2)?;
    let mut held = Vec::new();
    for i in 0..CROWD {
        held.push(lock(&crowd, &held_name(i), modes[i % modes.len()])?.acquire().await?);
    }
    let (mut theirs, mut waiters) = (Vec::new(), JoinSet::new());
    for i in 0..CROWD {
        theirs.push(other.mutex(awaited_name(i))?.acquire().await?);
        let waiter = lock(&crowd, &awaited_name(i), modes[i % modes.len()])?;
        waiters.spawn(async move { Ok::<_, onelock_core::Error>((i, waiter.acquire().await?)) });
    }
    for i in 0..CROWD {
        ctx.until_line_has(other.backend(), &name(&awaited_name(i))?, 2).await?;
    }
    // Each for a while in which renewals come due, and together shorter than what is left of a lease that was just renewed.
    for fault in [
        Fault::Delay(Duration::from_millis(150)),
        Fault::StallReplies,
        Fault::LoseReplies,
        Fault::Delay(Duration::from_millis(150)),
    ] {
        link.set(fault);
        // Where replies stall some come through, one by one.
        for _ in 0..16 {
            tokio::time::sleep(lease / 8 / 16).await;
            if fault == Fault::StallReplies {
                link.let_one_through();
            }
        }
        link.heal();
        // All is renewed again before the next.
        tokio::time::sleep(lease / 3).await;
        let lost = held.iter().filter(|guard| !guard.is_held()).count();
        ensure_eq!(lost, 0, "locks lost by {fault:?}");
    }
    ensure!(link.hits.get() > 0, "nothing was late or lost");
    for (i, guard) in held.iter().enumerate() {
        let line = other.inspect(&held_name(i)).await?;
        ensure_eq!(line.holders.len(), 1, "holders of {}", held_name(i));
        ensure_eq!(line.holders[0].token, guard.token()?, "the token of its holder");
    }
    handed_over(ctx, &link, theirs, waiters).await?;
    for guard in held {
        ensure!(guard.is_held(), "a lock was lost while others were handed over");
        guard.release().await?;
    }
    ctx.until_empty().await
}

/// Every waiter gets its lock when the holder before it has left, also when the push is late.
async fn handed_over(
    ctx: &Ctx,
    link: &std::sync::Arc<Link>,
    theirs: Vec<Guard>,
    mut waiters: JoinSet<onelock_core::Result<(usize, Guard)>>,
) -> Verdict {
    link.set(Fault::Delay(Duration::from_millis(50)));
    let mut before = Vec::new();
    for guard in theirs {
        before.push(guard.token()?);
        guard.release().await?;
    }
    link.heal();
    while let Some(next) = ctx.soon("the next waiter holds", waiters.join_next()).await? {
        let (i, guard) = next??;
        let token = guard.token()?;
        ensure!(guard.is_held() && token > *before.get(i).context("its turn")?, "{i}: {token}");
        guard.release().await?;
    }
    Ok(())
}
