//! The verbs one at a time: joining, leaving, asking again.

use std::sync::Arc;

use onelock_core::{ErrorKind, FencingToken, HolderId, Mode, Page, Release, Renewed, Standing, Ticket};

use crate::case::{Need, table};
use crate::ctx::{
    Ctx, Entry, all, exclusive, held, holder, name, permit, refused, renew, renewal, request, ticket, trying,
    waiting,
};
use crate::verdict::Verdict;
use crate::{ensure, ensure_eq, expect, fail};

table! {
    capabilities_are_as_declared: [18], [], 20;
    basic_cycle: [1], [], 20;
    try_is_busy: [1], [], 20;
    unfair_never_passes_a_waiter: [1], [Need::Can("fifo")], 20;
    acquire_is_idempotent: [2], [], 20;
    owner_only: [7, 8], [], 30;
    stale_handle: [8], [], 20;
    renew_answers_each: [7], [], 120;
    racing_acquires_give_one_holder: [1, 3], [], 60;
}

/// What the backend declares is what the store's test file declares, and what it lacks is refused when asked for.
async fn capabilities_are_as_declared(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let (declared, actual) = (ctx.harness().capabilities(), backend.capabilities());
    ensure_eq!(declared, actual, "the capabilities that the harness declares and the backend's");
    let locks = ctx.locks().await?;
    for (mode, has) in [(Mode::Shared, actual.shared), (permit(2)?, actual.permits)] {
        let (what, built) = (format!("mode {mode}, which is not offered"), locks.lock("mode", mode));
        let made = backend.acquire(&request(&name("verb")?, mode)?).await;
        if has {
            drop((built?, made?));
        } else {
            refused(built, ErrorKind::Unsupported, &what)?;
            refused(made, ErrorKind::Unsupported, &what)?;
        }
        // The next mode starts on an empty line.
        for view in backend.inspect(&name("verb")?).await?.holders {
            backend.evict(&name("verb")?, view.token).await?;
        }
    }
    if !actual.delay {
        let delayed = locks.mutex("delay")?.lock_delay(ctx.units(1));
        refused(delayed, ErrorKind::Unsupported, "a lock-delay")?;
    }
    if !actual.raise {
        let held = exclusive(&name("verb")?)?;
        let token = FencingToken::new(1)?;
        let raised = backend.raise(&ticket(&held, token), token).await;
        refused(raised, ErrorKind::Unsupported, "a raise")?;
    }
    if !actual.list {
        let listing = locks.list("", &Page::first(10)?).await;
        refused(listing, ErrorKind::Unsupported, "a listing")?;
    }
    Ok(())
}

/// Take, show, give back, take again.
async fn basic_cycle(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("cycle")?;
    let mut last = 0;
    for round in 0..5 {
        let request = exclusive(&name)?;
        let grant = held(&backend, &request).await?;
        ensure!(grant.token.get() > last, "round {round}: token {} after {last}", grant.token);
        ensure!(grant.lease >= request.lease, "asked for {:?}, got {:?}", request.lease, grant.lease);
        last = grant.token.get();
        let line = backend.inspect(&name).await?;
        ensure_eq!((line.holders.len(), line.waiters.len()), (1, 0), "holders and waiters");
        ensure_eq!(backend.release(&ticket(&request, grant.token)).await?, Release::Released, "the release");
        let line = backend.inspect(&name).await?;
        ensure!(line.holders.is_empty() && line.waiters.is_empty(), "an entry is left: {line:?}");
    }
    Ok(())
}

/// A try on a busy lock says so and leaves no trace; it succeeds once the lock is free.
async fn try_is_busy(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    let name = name("busy")?;
    let first = exclusive(&name)?;
    let grant = held(&a, &first).await?;
    for mode in ctx.modes(3)? {
        let attempt = trying(request(&name, mode)?);
        let busy = expect!(b.acquire(&attempt).await?, Standing::Busy(busy) => busy, "a try in mode {mode}");
        let soon = busy.retry_after.is_none_or(|after| after <= first.lease);
        ensure!(soon, "when the lease ahead ends, which was {:?}: {busy:?}", first.lease);
        let line = b.inspect(&name).await?;
        ensure_eq!((line.holders.len(), line.waiters.len()), (1, 0), "after a try in mode {mode}");
        ensure_eq!(b.release(&attempt.ticket()).await?, Release::NotHeld, "releasing what was never held");
    }
    a.release(&ticket(&first, grant.token)).await?;
    held(&b, &trying(exclusive(&name)?)).await?;
    Ok(())
}

/// Who does not queue never passes a waiter, even where it would be compatible with the holder.
async fn unfair_never_passes_a_waiter(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let (mode, text) = if ctx.harness().capabilities().shared {
        (Mode::Shared, "shared")
    } else {
        (Mode::Exclusive, "exclusive")
    };
    let name = name(text)?;
    let first = Entry::holding(&backend, request(&name, mode)?).await?;
    let writer = Entry::waiting(&backend, exclusive(&name)?).await?;
    let unfair = trying(request(&name, mode)?);
    expect!(backend.acquire(&unfair).await?, Standing::Busy(_) => (), "a try behind a waiter");
    first.release().await?;
    let holder = expect!(writer.renew().await?, Renewed::Held(grant) => grant, "the waiter");
    ensure_eq!(holder.token, writer.token.unwrap_or(holder.token), "the waiter's token");
    expect!(backend.acquire(&unfair).await?, Standing::Busy(_) => (), "a try behind the new holder");
    Ok(())
}

/// Asking again with the same holder gives the same entry and number, for a holder and for a waiter.
async fn acquire_is_idempotent(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("again")?;
    let first = exclusive(&name)?;
    let grant = held(&backend, &first).await?;
    ensure_eq!(held(&backend, &first).await?.token, grant.token, "the holder's token when asked again");
    ensure_eq!(held(&backend, &trying(first.clone())).await?.token, grant.token, "the same by a try");
    let mut entries = 1;
    if ctx.harness().capabilities().fifo {
        let second = Entry::waiting(&backend, exclusive(&name)?).await?;
        for again in [second.request.clone(), trying(second.request.clone())] {
            let again = waiting(&backend, &again).await?.token;
            ensure_eq!(again, second.token, "the waiter's token when asked again");
        }
        entries += usize::from(ctx.shows_the_line());
    }
    let line = backend.inspect(&name).await?;
    ensure_eq!(line.holders.len() + line.waiters.len(), entries, "entries in the line");
    Ok(())
}

/// Nobody but the holder's own id renews or releases: not a wrong id, not one that differs in a bit, not another name.
async fn owner_only(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    let (name, other) = (name("mine")?, name("min")?);
    let mine = exclusive(&name)?;
    let grant = held(&a, &mine).await?;
    let id = mine.holder.as_u128();
    let mut forged = vec![0, u128::MAX, !id, id.swap_bytes(), id >> 64, id << 64];
    forged.extend((0..128).step_by(2).map(|bit| id ^ (1 << bit)));
    for id in forged {
        let forged = HolderId::from_u128(id);
        for token in [Some(grant.token), None] {
            let ticket = Ticket::new(name.clone(), forged, mine.mode).delay(mine.delay).token(token);
            ensure_eq!(b.release(&ticket).await?, Release::NotHeld, "a forged release");
            let mut due = renewal(&mine, grant.token);
            due.ticket = ticket;
            ensure_eq!(renew(&b, due).await?, Renewed::NotHeld, "a forged renewal");
        }
    }
    let mut elsewhere = ticket(&mine, grant.token);
    elsewhere.name = other;
    ensure_eq!(b.release(&elsewhere).await?, Release::NotHeld, "a release of another name");
    ensure_eq!(holder(&a, &name).await?, Some(grant.token), "the holder after all that");
    expect!(renew(&a, renewal(&mine, grant.token)).await?, Renewed::Held(_) => (), "the holder's own renewal");
    // The id alone is enough: the answer to an acquire may have been lost with its number.
    ensure_eq!(b.release(&mine.ticket()).await?, Release::Released, "a release without the number");
    Ok(())
}

/// A handle of an earlier hold touches no later one.
async fn stale_handle(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("stale")?;
    let old = Entry::holding(&backend, exclusive(&name)?).await?;
    ensure_eq!(old.release().await?, Release::Released, "the first release");
    ensure_eq!(old.release().await?, Release::NotHeld, "the second release");
    let new = Entry::holding(&backend, exclusive(&name)?).await?;
    ensure_eq!(old.release().await?, Release::NotHeld, "a stale release");
    ensure_eq!(old.renew().await?, Renewed::NotHeld, "a stale renewal");
    let thief = old.ticket().token(new.token);
    ensure_eq!(backend.release(&thief).await?, Release::NotHeld, "a stale holder with the new number");
    ensure_eq!(holder(&backend, &name).await?, new.token, "the holder");
    Ok(())
}

/// A renewal of many entries answers each by itself and in order; an empty one is nothing.
async fn renew_answers_each(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let mut due = Vec::new();
    let mut wanted = Vec::new();
    for i in 0..300_i64 {
        let request = exclusive(&name(&format!("many-{i}"))?)?;
        let token = match i % 3 {
            // Never asked for.
            0 => FencingToken::new(i + 1)?,
            1 => held(&backend, &request).await?.token,
            _ => {
                let grant = held(&backend, &request).await?;
                backend.release(&ticket(&request, grant.token)).await?;
                grant.token
            }
        };
        wanted.push((i % 3 == 1).then_some(token));
        due.push(renewal(&request, token));
    }
    let answers = backend.renew(&due).await;
    ensure_eq!(answers.len(), due.len(), "answers and renewals");
    for (i, (answer, wanted)) in answers.into_iter().zip(wanted).enumerate() {
        let got = match answer? {
            Renewed::Held(grant) => Some(grant.token),
            Renewed::NotHeld => None,
            waiting @ Renewed::Waiting(_) => {
                fail!("item {i}: {waiting:?}");
            }
        };
        ensure_eq!(got, wanted, "item {i}");
    }
    ensure!(backend.renew(&[]).await.is_empty(), "answers to nothing");
    if ctx.shows_the_line() {
        // Entries of one name are told apart, too.
        let name = name("one-name")?;
        let first = Entry::holding(&backend, exclusive(&name)?).await?;
        let second = Entry::waiting(&backend, exclusive(&name)?).await?;
        let due = [&second, &first].map(|entry| renewal(&entry.request, entry.token));
        let answers = backend.renew(&due).await;
        expect!(&answers[..], [Ok(Renewed::Waiting(_)), Ok(Renewed::Held(_))] => (), "a waiter and its holder");
    }
    Ok(())
}

/// Of many who ask at the same moment from several clients exactly one holds, and all numbers differ. Where nobody waits, the
/// votes of a quorum's members may split now and then: then nobody does.
async fn racing_acquires_give_one_holder(ctx: &Ctx) -> Verdict {
    let fifo = ctx.harness().capabilities().fifo;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(ctx.backend().await?);
    }
    let mut decided = 0;
    for round in 0..ctx.many(20) {
        let name = name(&format!("race-{round}"))?;
        let start = Arc::new(tokio::sync::Barrier::new(8));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..8 {
            let (backend, start) = (Arc::clone(&clients[i % clients.len()]), Arc::clone(&start));
            let mut request = exclusive(&name)?;
            request.queue = fifo && i % 2 == 0;
            tasks.spawn(async move {
                start.wait().await;
                backend.acquire(&request).await
            });
        }
        let (mut holders, mut tokens) = (0, Vec::new());
        for answer in all(tasks).await? {
            match answer {
                Standing::Held(grant) => {
                    holders += 1;
                    tokens.push(grant.token);
                }
                Standing::Waiting(place) => tokens.extend(place.token),
                Standing::Busy(_) => {}
            }
        }
        ensure!(holders == 1 || (holders == 0 && !fifo), "{holders} hold {name:?}");
        decided += holders;
        let count = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        ensure_eq!(tokens.len(), count, "different numbers");
        let line = clients[0].inspect(&name).await?;
        ensure_eq!(line.holders.len(), holders, "holders shown");
        ensure_eq!(line.holders.len() + line.waiters.len(), count, "entries shown");
    }
    ensure!(decided >= ctx.many(20) / 2, "only {decided} of {} races had a winner", ctx.many(20));
    Ok(())
}
