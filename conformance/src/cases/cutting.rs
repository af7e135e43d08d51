//! The way to the store is cut, or loses replies, while locks are held and waited for.

use std::sync::Arc;

use onelock_core::client::Locks;
use onelock_core::client::guard::{Guard, LossReason};

use crate::aside::Aside;
use crate::case::{Need, table};
use crate::ctx::{Acquiring, Ctx, LONG, PATIENCE, name, patient};
use crate::faults::{Courier, Fault, Link};
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq, expect};

table! {
    lost_wake_is_repaired: [9], [Need::Link, Need::Line], 120;
    late_wake_is_discarded: [6, 9], [Need::Link, Need::Line, Need::WaiterLease], 120;
    late_wake_of_a_stalled_process: [6, 9], [Need::Line], 120;
    partition_ends_the_hold_in_time: [5, 6], [Need::Link], 120;
    resets_do_not_lose_the_lock: [7], [Need::Link, Need::Reconnect], 120;
    lost_reply_to_acquire_is_given_back: [16], [Need::Link], 120;
    lost_reply_to_release_frees_once: [8, 16], [Need::Link], 120;
    waiter_keeps_its_place_over_resets: [9], [Need::Link, Need::Line], 120;
}

/// Waits until the client has read the answers to its acquires: the store knows of an entry before its client does.
async fn answered(ctx: &Ctx, locks: &Locks) -> Verdict {
    ctx.eventually("the client has its answer", async || Ok((locks.pending() == 0).then_some(()))).await
}

/// A push that is lost with its connection is repaired by the next renewal.
async fn lost_wake_is_repaired(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let (locks, other) = (ctx.locks_by(&link, LONG, ctx.units(30)).await?, ctx.locks().await?);
    for fault in [Fault::Reset, Fault::LoseReplies] {
        let text = format!("lost-wake-{fault:?}");
        let holder = other.mutex(&text)?.acquire().await?;
        let waiter = ctx.queued(locks.mutex(&text)?.retry(patient()), &other, 2).await?;
        answered(ctx, &locks).await?;
        link.set(fault);
        let token = other.inspect(&text).await?.waiters.first().context("the waiter")?.token;
        holder.release().await?;
        ctx.eventually("the waiter is promoted", async || {
            let line = other.inspect(&text).await?;
            Ok(line.holders.first().is_some_and(|h| h.token == token).then_some(()))
        })
        .await?;
        link.heal();
        let guard = ctx.soon("the waiter holds after all", waiter).await???;
        ensure_eq!(guard.token()?, token, "its place in the line");
        guard.release().await?;
    }
    Ok(())
}

/// A waiter that is promoted while it is cut off: the lock moves on within its waiter lease, and the late push changes
/// nothing.
async fn late_wake_is_discarded(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let locks = ctx.locks_by(&link, LONG, ctx.units(5)).await?;
    // Who comes to the head of the line learns at its next renewal whose lease it waits for.
    let other = ctx.client(ctx.backend().await?, LONG, ctx.units(5))?;
    let holder = other.mutex("moved-on")?.acquire().await?;
    let waiter = ctx.queued(locks.mutex("moved-on")?.retry(patient()), &other, 2).await?;
    let next = ctx.queued(other.mutex("moved-on")?, &other, 3).await?;
    answered(ctx, &locks).await?;
    link.set(Fault::Stall);
    holder.release().await?;
    // The cut-off waiter holds by the store's book until its waiter lease ends; far sooner than a holder's lease would.
    let next = ctx.soon("the lock moves on", next).await???;
    link.heal();
    comes_after(ctx, waiter, next, 4).await.map(drop)
}

/// A waiter that was away does not come through in so many units while `next` holds; later it does, on a new place.
async fn comes_after(ctx: &Ctx, mut waiter: Acquiring, next: Guard, units: u32) -> Verdict<Guard> {
    let end = ctx.now() + ctx.units(units);
    while ctx.now() < end {
        ensure!(next.is_held(), "the next holder was hurt");
        let early = tokio::time::timeout(ctx.units(1) / 4, &mut waiter).await;
        expect!(early, Err(_) => (), "the late waiter came through while another holds");
    }
    let token = next.token()?;
    next.release().await?;
    let guard = ctx.soon("the late waiter's turn", waiter).await???;
    ensure!(guard.token()? > token, "token {} after {token}: the old place", guard.token()?);
    Ok(guard)
}

/// A process that stalls past its waiter lease, while it is promoted: when it goes on, the push is there before it
/// has looked at a clock, and still it does not hold.
async fn late_wake_of_a_stalled_process(ctx: &Ctx) -> Verdict {
    let text = "stalled";
    let other = ctx.client(ctx.backend().await?, LONG, ctx.units(5))?;
    let aside = Aside::start()?;
    let backend = Arc::new(Courier::new(ctx.backend().await?, &tokio::runtime::Handle::current()));
    let locks = aside.client(ctx, backend, LONG, ctx.units(4))?;
    let holder = other.mutex(text)?.acquire().await?;
    let lock = locks.mutex(text)?.retry(patient());
    let waiter = aside.handle.spawn(async move { lock.acquire().await });
    ctx.until_line_has(other.backend(), &name(text)?, 2).await?;
    let next = ctx.queued(other.mutex(text)?, &other, 3).await?;
    let (go_on, stalled) = std::sync::mpsc::channel::<()>();
    let (standing, stands) = tokio::sync::oneshot::channel();
    aside.handle.spawn(async move {
        let _told = standing.send(());
        // Blocks the thread on purpose; ends when the case lets go of the sender, too.
        let _gone_on = stalled.recv();
    });
    ctx.soon("the process stalls", stands).await??;
    holder.release().await?;
    let next = ctx.soon("the line moves on", next).await???;
    go_on.send(())?;
    comes_after(ctx, waiter, next, 3).await?.release().await?;
    aside.end().await
}

/// A holder that is cut off loses the lock by its own clock before the next one gets it, and healing brings nothing back.
async fn partition_ends_the_hold_in_time(ctx: &Ctx) -> Verdict {
    let capabilities = ctx.harness().capabilities();
    for fault in [Fault::Stall, Fault::Reset] {
        if matches!(fault, Fault::Reset) && ctx.harness().lacks(Need::Reconnect).is_some() {
            // There the lock ends with the connection, and each end learns it for itself.
            continue;
        }
        let link = Link::new();
        let (locks, other) = (ctx.locks_by(&link, ctx.units(5), ctx.units(5)).await?, ctx.locks().await?);
        let text = format!("partition-{fault:?}");
        let guard = locks.mutex(&text)?.acquire().await?;
        let old = guard.token().ok();
        ensure_eq!(old.is_some(), capabilities.fencing, "whether there is a token");
        let next = ctx.queued(other.mutex(&text)?, &other, 2).await?;
        link.set(fault);
        let next = ctx.soon("the next one holds", next).await???;
        ensure!(!guard.is_held() && guard.deadline() < ctx.now(), "{fault:?}: two hold at the same time");
        ensure_eq!(guard.lost().await, LossReason::Expired, "{fault:?}: why it is lost");
        let token = next.token().ok();
        ensure!(!capabilities.fencing || token > old, "token {token:?} after {old:?}");
        link.heal();
        tokio::time::sleep(ctx.units(4)).await;
        ensure!(!guard.is_held() && guard.token().is_err(), "{fault:?}: a lost guard came back");
        ensure!(next.is_held(), "{fault:?}: the next holder was hurt");
        let line = other.inspect(&text).await?;
        if capabilities.fencing {
            let holder = line.holders.first().map(|holder| holder.token);
            ensure_eq!(holder, token, "{fault:?}: the holder at the end");
        }
        ensure_eq!(line.holders.len() + line.waiters.len(), 1, "{fault:?}: entries at the end");
    }
    Ok(())
}

/// Connections that are reset again and again do not lose the lock while one renewal a lease gets through.
async fn resets_do_not_lose_the_lock(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let locks = ctx.locks_by(&link, ctx.units(16), ctx.units(16)).await?;
    let guard = locks.mutex("shaken")?.acquire().await?;
    let (token, first) = (guard.token()?, guard.deadline());
    for round in 0..5 {
        link.set(Fault::Reset);
        tokio::time::sleep(ctx.units(2)).await;
        link.heal();
        let seen = guard.deadline();
        ctx.soon("a renewal gets through", guard.renewed(seen))
            .await?
            .context(format!("lost in round {round}"))?;
        ensure_eq!(guard.token()?, token, "round {round}");
    }
    ensure!(guard.deadline() > first, "nothing was renewed");
    guard.release().await?;
    Ok(())
}

/// An acquire whose reply is lost is not held, and what it may have got is given back.
async fn lost_reply_to_acquire_is_given_back(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let (locks, other) = (ctx.locks_by(&link, LONG, LONG).await?, ctx.locks().await?);
    let (rounds, mut unclear) = (ctx.many(5), 0);
    for round in 0..rounds {
        let text = format!("lost-reply-{round}");
        // A client whose connections broke in the last round is there again: what cannot be sent is not unclear.
        ctx.eventually("the client reaches the store", async || {
            let tried = locks.mutex(&text)?.try_acquire().await;
            let Ok(Some(guard)) = tried else { return Ok(None) };
            guard.release().await?;
            Ok(Some(()))
        })
        .await?;
        link.set(Fault::LoseReplies);
        let tried = ctx.soon("a try whose reply is lost", locks.mutex(&text)?.try_acquire()).await?;
        let error = expect!(tried, Err(error) => error, "a try whose reply is lost");
        // The client's own sweep may use the connection at that moment: then the try was not sent, and nothing is unclear.
        unclear += usize::from(error.is_unclear());
        link.heal();
        // The lease is far longer than this waits.
        let guard = ctx.soon("the lock is given back", other.mutex(&text)?.acquire()).await??;
        guard.release().await?;
        // A client that still waits for the answer to its give-back has no connection that it could ask on, and what was
        // never sent is not unclear.
        answered(ctx, &locks).await?;
    }
    ensure!(unclear * 5 >= rounds * 4, "{unclear} of {rounds} tries were sent: the run proves nothing");
    Ok(())
}

/// A release whose reply is lost is asked for again; it frees the lock once and hurts no later holder.
async fn lost_reply_to_release_frees_once(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let (locks, other) = (ctx.locks_by(&link, LONG, LONG).await?, ctx.locks().await?);
    let (rounds, mut lost) = (ctx.many(5), 0);
    for round in 0..rounds {
        let text = format!("lost-release-{round}");
        let guard = locks.mutex(&text)?.acquire().await?;
        link.set(Fault::LoseReplies);
        let release = tokio::spawn(guard.release());
        // Who joins only then is in nobody's way: a store may need a second step to leave a line that others are in, and
        // cannot take it before it has read the answer to the first.
        let line = name(&text)?;
        let freed = ctx.until_line_has(other.backend(), &line, 0);
        match tokio::time::timeout(PATIENCE / 6, freed).await {
            Ok(freed) => {
                freed?;
                lost += 1;
            }
            // A client whose connections serve something else just then needs a new one, which takes replies.
            Err(_) => link.heal(),
        }
        let next = ctx.soon("the lock is free", other.mutex(&text)?.acquire()).await??;
        link.heal();
        ctx.soon("the release ends", release).await???;
        ensure!(next.is_held(), "the next holder was hurt");
        let line = other.inspect(&text).await?;
        ensure_eq!(line.holders.first().map(|h| h.token), Some(next.token()?), "the holder at the end");
        next.release().await?;
    }
    ensure!(2 * lost >= rounds, "only {lost} of {rounds} releases were carried out without a reply");
    Ok(())
}

/// A waiter whose calls fail for a while keeps its place as long as its lease lasts.
async fn waiter_keeps_its_place_over_resets(ctx: &Ctx) -> Verdict {
    let link = Link::new();
    let (locks, other) = (ctx.locks_by(&link, LONG, ctx.units(20)).await?, ctx.locks().await?);
    let holder = other.mutex("place")?.acquire().await?;
    let waiter = ctx.queued(locks.mutex("place")?.retry(patient()), &other, 2).await?;
    answered(ctx, &locks).await?;
    let place = other.inspect("place").await?.waiters.first().context("the waiter")?.token;
    for _ in 0..3 {
        link.set(Fault::Reset);
        tokio::time::sleep(ctx.units(1)).await;
        link.heal();
        tokio::time::sleep(ctx.units(1)).await;
    }
    holder.release().await?;
    let guard = ctx.soon("the waiter holds", waiter).await???;
    ensure_eq!(guard.token()?, place, "its place in the line");
    Ok(())
}
