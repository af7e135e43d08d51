//! Tokens: positive, growing, never twice; and the verbs that go by them.

use onelock_core::{ErrorKind, FencingToken, Raise, Release, Renewed, Standing, TokenEpoch, Wake};

use crate::case::{Need, table};
use crate::ctx::{
    Ctx, Entry, LONG, cycle, exclusive, held, leased, name, number, refused, renew, renewal, ticket, trying,
    waiting,
};
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq, expect, fail};

table! {
    tokens_grow: [4], [Need::Can("fencing")], 60;
    tokens_grow_over_reconnect: [4], [Need::Can("fencing")], 30;
    tokens_grow_over_restart: [4], [Need::Can("fencing"), Need::Can("durable"), Need::Restart], 60;
    smaller_epochs_are_refused: [4], [Need::Can("fencing"), Need::Epochs], 30;
    raise_while_ours: [17], [Need::Can("raise"), Need::Can("fifo")], 20;
    evict_compares_the_token: [11], [], 30;
}

/// Later holders have larger tokens: after a release, an expiry, an eviction, and with other names in between.
async fn tokens_grow(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("growing")?;
    let mut last = 0;
    for round in 0..12 {
        let request = leased(exclusive(&name)?, if round % 3 == 1 { ctx.units(1) } else { LONG });
        // After an expiry nobody released: the lock is free when the store's clock says so.
        let tried = async || match backend.acquire(&trying(request.clone())).await? {
            Standing::Held(grant) => Ok(Some(grant)),
            _ => Ok(None),
        };
        let grant = ctx.eventually("the lock is free", tried).await?;
        ensure!(grant.token.get() > last, "round {round}: token {} after {last}", grant.token);
        last = grant.token.get();
        let ended = match round % 3 {
            0 => backend.release(&ticket(&request, grant.token)).await?,
            // It expires.
            1 => Release::Released,
            _ => backend.evict(&name, grant.token).await?,
        };
        ensure_eq!(ended, Release::Released, "round {round}: how the entry ended");
        for other in 0..3 {
            cycle(&backend, &crate::ctx::name(&format!("other-{other}"))?).await?;
        }
    }
    Ok(())
}

/// A new client goes on where another ended.
async fn tokens_grow_over_reconnect(ctx: &Ctx) -> Verdict {
    let name = name("reconnected")?;
    let mut last = 0;
    for round in 0..4 {
        let backend = ctx.backend().await?;
        for _ in 0..3 {
            let token = cycle(&backend, &name).await?.get();
            ensure!(token > last, "client {round}: token {token} after {last}");
            last = token;
        }
        backend.close().await?;
    }
    Ok(())
}

/// After a kill and a restart of the server numbers go on, and what was held is held.
async fn tokens_grow_over_restart(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let (idle, busy) = (name("idle")?, name("busy")?);
    let mut last = 0;
    for round in 0..3 {
        let token = cycle(&backend, &idle).await?.get();
        ensure!(token > last, "round {round}: token {token} after {last}");
        last = token;
    }
    let holder = exclusive(&busy)?;
    let grant = held(&backend, &holder).await?;
    for round in 0..2 {
        ctx.store().restart().await?;
        let other = ctx.backend().await?;
        let token = cycle(&other, &idle).await?.get();
        ensure!(token > last, "after restart {round}: token {token} after {last}");
        last = token;
        // Where an entry belongs to its client's session, only that client can renew it, once it has come back.
        let by = if ctx.harness().capabilities().resume { &other } else { &backend };
        let renewed = async || match by.renew(&[renewal(&holder, grant.token)]).await.remove(0) {
            Err(error) if error.is_retryable() => Ok(None),
            answer => Ok::<_, Stop>(Some(answer?)),
        };
        let answer = ctx.eventually("the holder's renewal after a restart", renewed).await?;
        let kept = expect!(answer, Renewed::Held(kept) => kept, "the holder after restart {round}");
        ensure_eq!(kept.token, grant.token, "its token");
    }
    Ok(())
}

/// A request of a smaller token epoch than one that has joined is refused and leaves nothing; the larger goes on.
async fn smaller_epochs_are_refused(ctx: &Ctx) -> Verdict {
    let name = name("epochs")?;
    let of = |epoch: u16| -> Verdict<_> { Ok((exclusive(&name)?).epoch(TokenEpoch::new(epoch)?)) };
    let mut last = 0;
    for epoch in [0, 2, 3] {
        // A client of its own each time: the epoch is the store's to remember.
        let backend = ctx.backend().await?;
        for _ in 0..2 {
            let request = of(epoch)?;
            let grant = held(&backend, &request).await?;
            let token = request.epoch.seal(grant.token)?.get();
            ensure!(token > last, "token {token} of epoch {epoch} after {last}");
            last = token;
            for smaller in 0..epoch {
                let waiter = of(smaller)?;
                match backend.acquire(&waiter).await {
                    Err(error) => {
                        ensure!(!error.is_unclear(), "epoch {smaller} is refused, but not clearly: {error}")
                    }
                    Ok(Standing::Busy(_)) => {}
                    joined => fail!("epoch {smaller} after {epoch}: {joined:?}"),
                }
            }
            let released = backend.release(&ticket(&request, grant.token)).await?;
            ensure_eq!(released, Release::Released, "the release");
        }
        for smaller in 0..epoch {
            let client = ctx.backend().await?;
            let what = format!("epoch {smaller} on a free lock after {epoch}");
            let error = refused(client.acquire(&of(smaller)?).await, ErrorKind::InvalidConfig, &what)?;
            ensure!(!error.is_retryable(), "a retry of a smaller epoch cannot help: {error}");
            let text = error.to_string();
            let told = [format!("token_epoch={smaller}"), format!("token_epoch={epoch}")];
            ensure!(told.iter().all(|part| text.contains(part)), "{text} does not name both epochs");
            ensure!(backend.inspect(&name).await?.holders.is_empty(), "a refused request left an entry");
        }
    }
    Ok(())
}

/// `raise` lifts the numbers of later entries while the entry is ours, and does nothing when it is not.
async fn raise_while_ours(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("raised")?;
    let request = exclusive(&name)?;
    let grant = held(&backend, &request).await?;
    let ours = ticket(&request, grant.token);
    let far = FencingToken::new(grant.token.get() + 1_000_000)?;
    ensure_eq!(backend.raise(&ours, far).await?, Raise::Raised, "a raise by the holder");
    // Lower than the counter: nothing to do, but still ours.
    ensure_eq!(backend.raise(&ours, grant.token).await?, Raise::Raised, "a raise to less");
    let own = expect!(renew(&backend, renewal(&request, grant.token)).await?, Renewed::Held(own) => own, "the holder");
    ensure_eq!(own.token, grant.token, "the holder's own token after a raise");
    // The number is shown to everybody: the holder id is what makes the entry ours.
    let further = FencingToken::new(far.get() + 1_000_000)?;
    let forged = ticket(&exclusive(&name)?, grant.token);
    ensure_eq!(backend.raise(&forged, further).await?, Raise::NotHeld, "a raise by another than the holder");
    backend.release(&ours).await?;
    let token = cycle(&backend, &name).await?.get();
    ensure!(token > far.get(), "token {token} after a raise to {far}");
    ensure!(token < further.get(), "a refused raise took effect: token {token}");
    let further = FencingToken::new(token + 1_000_000)?;
    ensure_eq!(backend.raise(&ours, further).await?, Raise::NotHeld, "a raise by one that holds no more");
    let token = cycle(&backend, &name).await?.get();
    ensure!(token < further.get(), "a refused raise took effect: token {token}");
    // Far beyond what a double can hold: growing on from there, or refused as a whole.
    let request = exclusive(&name)?;
    let grant = held(&backend, &request).await?;
    for huge in [(1 << 50) + 1, (1 << 53) + 1, i64::MAX - 10] {
        let raised = backend.raise(&ticket(&request, grant.token), FencingToken::new(huge)?).await;
        if !matches!(raised, Ok(Raise::Raised)) {
            let error = expect!(raised, Err(error) => error, "a raise to {huge}");
            ensure!(!error.is_unclear(), "a raise to {huge} is refused, but not clearly: {error}");
            continue;
        }
        let other = Entry::waiting(&backend, exclusive(&name)?).await?;
        let given = other.token.context("its number")?;
        ensure!(given.get() > huge, "number {given} after a raise to {huge}");
        other.release().await?;
    }
    Ok(())
}

/// `evict` takes out exactly the entry with this number, holder or waiter, and the line moves on.
async fn evict_compares_the_token(ctx: &Ctx) -> Verdict {
    let (a, admin) = (ctx.backend().await?, ctx.backend().await?);
    let name = name("evicted")?;
    let first = exclusive(&name)?;
    let grant = held(&a, &first).await?;
    for wrong in [grant.token.get() + 1, grant.token.get() + 1000, i64::MAX] {
        ensure_eq!(admin.evict(&name, FencingToken::new(wrong)?).await?, Release::NotHeld, "a wrong number");
    }
    let other = crate::ctx::name("evicte")?;
    ensure_eq!(admin.evict(&other, grant.token).await?, Release::NotHeld, "a wrong name");
    if ctx.shows_the_line() {
        let (second, third) = (exclusive(&name)?, exclusive(&name)?);
        let (two, three) = (number(waiting(&a, &second).await?)?, number(waiting(&a, &third).await?)?);
        ensure_eq!(admin.evict(&name, two).await?, Release::Released, "evicting a waiter");
        ensure_eq!(renew(&a, renewal(&second, two)).await?, Renewed::NotHeld, "the evicted waiter");
        ensure_eq!(admin.evict(&name, two).await?, Release::NotHeld, "evicting it again");
        ensure_eq!(admin.evict(&name, grant.token).await?, Release::Released, "evicting the holder");
        ensure_eq!(renew(&a, renewal(&first, grant.token)).await?, Renewed::NotHeld, "the evicted holder");
        ensure_eq!(a.release(&ticket(&first, grant.token)).await?, Release::NotHeld, "its release");
        // The next in the line is promoted, and told.
        let woken = ctx.soon("the wake-up after an eviction", a.wait(&ticket(&third, three))).await??;
        ensure!(matches!(woken, Wake::Ask | Wake::Held(_)), "{woken:?}");
        expect!(renew(&a, renewal(&third, three)).await?, Renewed::Held(_) => (), "the next in the line");
    } else {
        ensure_eq!(admin.evict(&name, grant.token).await?, Release::Released, "evicting the holder");
        held(&a, &exclusive(&name)?).await?;
    }
    Ok(())
}
