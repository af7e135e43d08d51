//! Leases on the store's clock: they end, they are renewed, they never come back.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{
    Backend, Capabilities, FencingToken, LockName, Release, Renewed, Request, Standing, Wake,
};

use crate::case::{Need, table};
use crate::ctx::{
    Ctx, Entry, LONG, all, exclusive, held, holder, leased, name, permit, renew, renewal, request, ticket,
    trying,
};
use crate::verdict::Verdict;
use crate::{ensure, ensure_eq, expect, fail};

table! {
    expiry_and_takeover: [5, 6], [], 60;
    renewal_keeps_the_lock: [5], [], 60;
    renew_never_shortens: [7], [], 60;
    late_renew_revives_nothing: [7], [], 60;
    late_acquire_revives_nothing: [2], [], 60;
    lock_delay: [5], [Need::Can("delay")], 60;
    dead_waiter_leaves_the_line: [6], [Need::Line], 60;
    promoted_waiter_keeps_its_waiter_lease: [5, 6], [Need::Line], 60;
    expired_among_living_holders: [6], [Need::Line, Need::Can("permits")], 60;
    leases_are_at_least_what_is_asked: [5], [], 30;
    release_at_the_end_of_a_lease_hurts_nobody: [8], [], 60;
    dead_waiter_is_not_told_that_it_holds: [9], [Need::Line], 60;
}

/// Waits until a try on the name holds; how long after `since` it was seen.
async fn until_free(
    ctx: &Ctx,
    backend: &Arc<dyn Backend>,
    request: &Request,
    since: onelock_core::Timestamp,
) -> Verdict<(FencingToken, Duration)> {
    let attempt = trying(request.clone());
    ctx.eventually("the lock is free", async || match backend.acquire(&attempt).await? {
        Standing::Held(grant) => Ok(Some((grant.token, ctx.now().saturating_since(since)))),
        Standing::Busy(busy) => {
            ensure!(busy.retry_after.is_none_or(|after| after <= LONG), "{busy:?}");
            Ok(None)
        }
        Standing::Waiting(place) => Err(crate::Stop::failed(format!("a try waits: {place:?}"))),
    })
    .await
}

/// A lease that nobody renews any more ends: not before its time, and then the next one holds, with a larger token.
async fn expiry_and_takeover(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    let Capabilities { granularity, fencing, .. } = backend.capabilities();
    for round in 0..ctx.many(3) {
        let name = name(&format!("expiring-{round}"))?;
        let renews = round == 0;
        let first = leased(exclusive(&name)?, ctx.units(if renews { 8 } else { 2 }));
        let mut sent = ctx.now();
        let mut grant = held(&backend, &first).await?;
        if renews {
            // Half way, so that what is left of the first lease is not enough.
            tokio::time::sleep(ctx.units(4)).await;
            sent = ctx.now();
            let renewed = renew(&backend, renewal(&first, grant.token)).await?;
            grant = expect!(renewed, Renewed::Held(grant) => grant, "a renewal in time");
        }
        let next = exclusive(&name)?;
        let (token, after) = until_free(ctx, &other, &next, sent).await?;
        ensure!(after + granularity >= grant.lease, "a lease of {:?} was over after {after:?}", grant.lease);
        // Numbers of a store without fencing say nothing.
        ensure!(!fencing || token > grant.token, "token {token} after {}", grant.token);
        let late = backend.release(&ticket(&first, grant.token)).await?;
        ensure_eq!(late, Release::NotHeld, "the late release");
        ensure_eq!(holder(&backend, &name).await?, Some(token), "the holder after the late release");
    }
    Ok(())
}

/// Renewed in time the lock is kept for many leases, and nobody else gets it.
async fn renewal_keeps_the_lock(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    for round in 0..8 {
        let name = name(&format!("renewed-{round}"))?;
        if stays_renewed(ctx, &backend, &other, &name).await? {
            return Ok(());
        }
    }
    fail!("the machine is too slow for this unit")
}

/// False where this machine slept through a whole lease: nothing is to be learnt then.
async fn stays_renewed(
    ctx: &Ctx,
    backend: &Arc<dyn Backend>,
    other: &Arc<dyn Backend>,
    name: &LockName,
) -> Verdict<bool> {
    let request = leased(exclusive(name)?, ctx.units(5));
    let start = ctx.now();
    let grant = held(backend, &request).await?;
    let mut sent = start;
    while ctx.now().saturating_since(start) < ctx.units(15) {
        tokio::time::sleep(ctx.units(1) / 2).await;
        let next = ctx.now();
        let answer = renew(backend, renewal(&request, grant.token)).await?;
        if ctx.now().saturating_since(sent) >= request.lease {
            return Ok(false);
        }
        let kept = expect!(answer, Renewed::Held(kept) => kept, "a renewal in time");
        ensure_eq!(kept.token, grant.token, "the token after a renewal");
        ensure!(kept.lease >= request.lease, "asked for {:?}, got {:?}", request.lease, kept.lease);
        sent = next;
        expect!(other.acquire(&trying(exclusive(name)?)).await?, Standing::Busy(_) => (), "a try on a renewed lock");
    }
    Ok(true)
}

/// A renewal for less leaves the lease as long as it was, of a holder and of a waiter.
async fn renew_never_shortens(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("kept")?;
    let request = exclusive(&name)?;
    let grant = held(&backend, &request).await?;
    let less = leased(request.clone(), ctx.units(1));
    expect!(renew(&backend, renewal(&less, grant.token)).await?, Renewed::Held(_) => (), "a renewal for less");
    expect!(backend.acquire(&less).await?, Standing::Held(_) => (), "asking again for less");
    let mut waiter = None;
    if ctx.shows_the_line() {
        let entry = Entry::waiting(&backend, exclusive(&name)?).await?;
        let less = leased(entry.request.clone(), ctx.units(1));
        let answer = renew(&backend, renewal(&less, entry.token)).await?;
        expect!(answer, Renewed::Waiting(_) => (), "a waiter's renewal for less");
        waiter = Some(entry);
    }
    tokio::time::sleep(ctx.units(3)).await;
    let answer = renew(&backend, renewal(&request, grant.token)).await?;
    expect!(answer, Renewed::Held(_) => (), "after the shorter lease");
    if let Some(waiter) = waiter {
        expect!(waiter.renew().await?, Renewed::Waiting(_) => (), "a waiter after the shorter lease");
    }
    Ok(())
}

/// What has ended is not renewed, whether another holds by now or nobody does.
async fn late_renew_revives_nothing(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    for taken in [false, true] {
        let name = name(if taken { "late-taken" } else { "late-free" })?;
        let request = leased(exclusive(&name)?, ctx.units(1));
        let sent = ctx.now();
        let grant = held(&backend, &request).await?;
        if taken {
            until_free(ctx, &other, &exclusive(&name)?, sent).await?;
        } else {
            tokio::time::sleep(ctx.units(2)).await;
        }
        let late = renew(&backend, renewal(&leased(request.clone(), LONG), grant.token)).await?;
        ensure_eq!(late, Renewed::NotHeld, "a late renewal (taken: {taken})");
        let line = backend.inspect(&name).await?;
        ensure_eq!(line.holders.len(), usize::from(taken), "holders after it (taken: {taken})");
        ensure!(line.holders.iter().all(|h| h.token != grant.token), "the entry is back: {line:?}");
    }
    Ok(())
}

/// Asking again after the lease has ended gives a new entry with a new number, never the old one.
async fn late_acquire_revives_nothing(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("late-acquire")?;
    let request = leased(exclusive(&name)?, ctx.units(1));
    let grant = held(&backend, &request).await?;
    tokio::time::sleep(ctx.units(2)).await;
    let again = held(&backend, &request).await?;
    ensure!(again.token > grant.token, "token {} after {}", again.token, grant.token);
    Ok(())
}

/// The lock-delay keeps the lock blocked beyond the lease of a lost holder, one that has renewed or was promoted too, and not after a
/// release.
async fn lock_delay(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    let granularity = backend.capabilities().granularity;
    let name = name("delayed")?;
    let first = leased(exclusive(&name)?, ctx.units(4)).delay(ctx.units(4));
    let grant = held(&backend, &first).await?;
    ensure!(grant.lease < ctx.units(8), "the answer counts the delay in: {:?}", grant.lease);
    let sent = ctx.now();
    let renewed = renew(&backend, renewal(&first, grant.token)).await?;
    expect!(renewed, Renewed::Held(_) => (), "a renewal in time");
    let least = ctx.units(8);
    let (_, after) = until_free(ctx, &other, &exclusive(&name)?, sent).await?;
    ensure!(after + granularity >= least, "blocked for {after:?} only, not {least:?}");
    if ctx.shows_the_line() {
        let name = crate::ctx::name("delayed-promoted")?;
        let ahead = Entry::holding(&backend, exclusive(&name)?).await?;
        let sent = ctx.now();
        Entry::waiting(&backend, leased(exclusive(&name)?, ctx.units(4)).delay(ctx.units(4))).await?;
        ahead.release().await?;
        let (_, after) = until_free(ctx, &other, &exclusive(&name)?, sent).await?;
        ensure!(after + granularity >= least, "promoted, and blocked for {after:?} only, not {least:?}");
    }
    let name = crate::ctx::name("delayed-released")?;
    let mut second = leased(exclusive(&name)?, LONG);
    second.delay = LONG;
    let grant = held(&backend, &second).await?;
    backend.release(&ticket(&second, grant.token)).await?;
    held(&backend, &exclusive(&name)?).await?;
    Ok(())
}

/// A waiter that is not renewed leaves the line: the one behind it is next.
async fn dead_waiter_leaves_the_line(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("dead-waiter")?;
    let first = Entry::holding(&backend, exclusive(&name)?).await?;
    let dead = Entry::waiting(&backend, exclusive(&name)?.waiter_lease(ctx.units(1))).await?;
    let next = Entry::waiting(&backend, exclusive(&name)?).await?;
    ctx.until_line_has(&backend, &name, 2).await?;
    ensure_eq!(dead.renew().await?, Renewed::NotHeld, "the dead waiter");
    first.release().await?;
    expect!(next.renew().await?, Renewed::Held(_) => (), "the one behind it");
    Ok(())
}

/// A waiter that is promoted and never asks again holds for its waiter lease only: then the lock moves on.
async fn promoted_waiter_keeps_its_waiter_lease(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("promoted")?;
    let first = Entry::holding(&backend, exclusive(&name)?).await?;
    let _silent = Entry::waiting(&backend, exclusive(&name)?.waiter_lease(ctx.units(2))).await?;
    let next = Entry::waiting(&backend, exclusive(&name)?).await?;
    first.release().await?;
    // No wake-up need come: whoever is first in the line asks when the lease ahead ends.
    ctx.eventually("the lock moves on", async || match next.renew().await? {
        Renewed::Held(_) => Ok(Some(())),
        Renewed::Waiting(place) => {
            let soon = place.retry_after.is_none_or(|after| after <= ctx.units(2));
            ensure!(soon, "when the lease ahead ends: {place:?}");
            Ok(None)
        }
        Renewed::NotHeld => Err(crate::Stop::failed("the last waiter is gone")),
    })
    .await
}

/// One holder's lease ends while another's goes on: its place is free, and only its.
async fn expired_among_living_holders(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let (name, two) = (name("among-living")?, permit(2)?);
    // Long enough for the others to join before it ends, on a busy machine too.
    let dead = Entry::holding(&backend, leased(request(&name, two)?, ctx.units(8))).await?;
    let living = Entry::holding(&backend, request(&name, two)?).await?;
    let next = Entry::waiting(&backend, request(&name, two)?).await?;
    let last = Entry::waiting(&backend, request(&name, two)?).await?;
    ctx.eventually("the place is free", async || Ok(next.holds().await?.then_some(()))).await?;
    ensure_eq!(dead.renew().await?, Renewed::NotHeld, "the dead holder");
    expect!(living.renew().await?, Renewed::Held(_) => (), "the living holder");
    expect!(last.renew().await?, Renewed::Waiting(_) => (), "the last waiter");
    Ok(())
}

/// What the store answers is never less than what was asked for, in odd amounts and up to the longest.
async fn leases_are_at_least_what_is_asked(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let capabilities = backend.capabilities();
    let asked = [
        capabilities.min_lease,
        Duration::from_millis(1234),
        Duration::from_secs(3600) + Duration::from_millis(1),
        capabilities.max_lease,
    ];
    for (i, lease) in asked.into_iter().enumerate() {
        let lease = capabilities.round_lease(lease, capabilities.max_lease)?;
        let name = name(&format!("length-{i}"))?;
        // The shortest may be over before a busy machine has asked all members.
        let attempt = async || {
            let request = leased(exclusive(&name)?, lease);
            let standing = backend.acquire(&request).await?;
            backend.release(&request.ticket()).await?;
            Ok(if let Standing::Held(grant) = standing { Some(grant.lease) } else { None })
        };
        let given = ctx.eventually("a grant", attempt).await?;
        ensure!(given >= lease, "asked for {lease:?}, got {given:?}");
    }
    Ok(())
}

/// A release that is sent about when its lease ends frees its own entry or nothing: whoever took over meanwhile stays.
async fn release_at_the_end_of_a_lease_hurts_nobody(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    let lease = ctx.units(3);
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..12_u32 {
        let (a, b) = (Arc::clone(&a), Arc::clone(&b));
        let name = name(&format!("last-moment-{i}"))?;
        let (first, second) = (leased(exclusive(&name)?, lease), trying(exclusive(&name)?));
        tasks.spawn(async move {
            let grant = held(&a, &first).await?;
            let late = async {
                // From well before the end to shortly after it.
                tokio::time::sleep(grant.lease * (6 + i) / 16).await;
                a.release(&ticket(&first, grant.token)).await
            };
            let taken = async {
                loop {
                    if let Standing::Held(grant) = b.acquire(&second).await? {
                        return Ok::<_, crate::Stop>(grant.token);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let (released, token) = tokio::join!(late, taken);
            let (released, token) = (released?, token?);
            let line = b.inspect(&name).await?;
            let holders: Vec<_> = line.holders.iter().map(|holder| holder.token).collect();
            ensure_eq!(holders, [token], "the holder after the late release, which said {released:?}");
            expect!(renew(&b, renewal(&second, token)).await?, Renewed::Held(_) => (), "the next holder's renewal");
            Verdict::Ok(())
        });
    }
    ctx.soon("the late releases", all(tasks)).await?.map(drop)
}

/// A waiter whose own lease has ended while it waited is not told that it holds when its turn would have come.
async fn dead_waiter_is_not_told_that_it_holds(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    let name = name("waited-to-death")?;
    let first = Entry::holding(&a, exclusive(&name)?).await?;
    let dead = Entry::waiting(&b, exclusive(&name)?.waiter_lease(ctx.units(2))).await?;
    let waits = dead.clone();
    let wait = tokio::spawn(async move {
        loop {
            match waits.backend.wait(&waits.ticket()).await {
                // Asking is what a client does then, and it would be told.
                Ok(Wake::Ask) => tokio::time::sleep(Duration::from_millis(10)).await,
                other => return other,
            }
        }
    });
    ctx.until_line_has(&a, &name, 1).await?;
    first.release().await?;
    let told = tokio::time::timeout(ctx.units(1), wait).await;
    if let Ok(told) = told {
        let told = told?;
        ensure!(told.is_err(), "a waiter whose lease is over is told {told:?}");
    }
    ensure_eq!(dead.renew().await?, Renewed::NotHeld, "the dead waiter");
    held(&a, &exclusive(&name)?).await?;
    Ok(())
}
