//! The client: guards, re-entry, renewal, loss, drop in every state. Proven over each store.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use onelock_core::client::Locks;
use onelock_core::client::guard::{Guard, LossReason};
use onelock_core::{ErrorKind, Release};

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, PATIENCE, acquiring, name, refused};
use crate::runner::panic_on_purpose;
use crate::verdict::{Context as _, Verdict};
use crate::{ensure, ensure_eq};

table! {
    guard_cycle: [], [], 30;
    timed_acquire: [], [], 60;
    reentry: [], [], 30;
    owner_joins_itself: [], [Need::Line], 60;
    renewal_is_kept_up: [5, 7], [], 60;
    fixed_lease_ends: [], [], 60;
    max_hold_ends_it: [], [], 60;
    eviction_is_noticed: [11], [], 60;
    extend_moves_the_deadline: [], [], 30;
    run_is_stopped: [], [], 60;
    deadline_is_before_the_store: [], [], 60;
    drop_in_every_state: [], [], 120;
    drop_at_shutdown: [], [], 60;
    waiting_is_dropped: [], [Need::Line], 60;
    epochs_lift_tokens: [], [Need::Can("fencing"), Need::Epochs], 30;
}

/// Waits until somebody else gets the lock.
async fn until_free(ctx: &Ctx, locks: &Locks, name: &str) -> Verdict<Guard> {
    let lock = locks.mutex(name)?;
    ctx.eventually(&format!("`{name}` is free"), async || Ok(lock.try_acquire().await?)).await
}

/// A guard tells what it holds; once given back the next one holds with a larger token.
async fn guard_cycle(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.locks().await?, ctx.locks().await?);
    let lock = a.mutex("cycle")?;
    let guard = lock.acquire().await?;
    ensure!(guard.is_held() && guard.remaining() > Duration::ZERO, "not held");
    ensure!(guard.remaining() < guard.ttl(), "nothing is kept back of the lease");
    ensure_eq!(guard.name().as_str(), "cycle", "the name");
    let token = guard.token()?;
    ensure!(b.mutex("cycle")?.try_acquire().await?.is_none(), "held twice");
    let line = b.inspect("cycle").await?;
    ensure_eq!(line.holders.first().map(|h| h.token), Some(token), "the token that is shown");
    guard.release().await?;
    let next = b.mutex("cycle")?.try_acquire().await?.context("the lock is free")?;
    ensure!(next.token()? > token, "token {} after {token}", next.token()?);
    // Waiting in the line, over two clients.
    let waiter = ctx.queued(lock, &b, 2).await?;
    next.release().await?;
    let guard = ctx.soon("the waiter holds", waiter).await???;
    ensure!(guard.is_held(), "the waiter's guard");
    Ok(())
}

/// An acquisition with a time limit ends about then, and leaves the line.
async fn timed_acquire(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.locks().await?, ctx.locks().await?);
    let guard = a.mutex("timed")?.acquire().await?;
    for lock in [b.mutex("timed")?, b.mutex("timed")?.unfair()] {
        let began = ctx.now();
        let got = ctx.soon("an acquire with a limit", lock.acquire_timeout(ctx.units(1))).await??;
        ensure!(got.is_none(), "held twice");
        ensure!(ctx.now().saturating_since(began) >= ctx.units(1), "it gave up too soon");
        ctx.until_line_has(a.backend(), &name("timed")?, 1).await?;
        ensure!(lock.acquire_timeout(Duration::ZERO).await?.is_none(), "held twice");
    }
    guard.release().await?;
    ensure!(b.mutex("timed")?.acquire_timeout(PATIENCE).await?.is_some(), "a free lock");
    Ok(())
}

/// Entering again asks the store nothing, gives the same token, and the outermost release gives the lock back.
async fn reentry(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let (owner, other) = (locks.owner(), locks.owner());
    let lock = locks.mutex("nested")?.owner(&owner)?;
    lock.try_acquire().await?.context("a try of an owner that holds nothing")?.release().await?;
    let outer = lock.acquire().await?;
    let token = outer.token()?;
    let mut inner = Vec::new();
    let mut cost = 0;
    // What a client asks while it settles in may come in between: once at least there is nothing.
    for _ in 0..3 {
        let before = ctx.requests().await?;
        for i in 0..50 {
            let guard = match i % 4 {
                0 => lock.acquire().await?,
                1 => lock.try_acquire().await?.context("a try to enter again")?,
                2 => outer.reenter()?,
                _ => lock.acquire_timeout(PATIENCE).await?.context("entering again in time")?,
            };
            ensure_eq!(guard.token()?, token, "the token on entering again");
            inner.push(guard);
            if i % 3 == 2
                && let Some(guard) = inner.pop()
            {
                guard.release().await?;
            }
        }
        cost = ctx.requests().await?.zip(before).map_or(0, |(after, before)| after - before);
        if cost == 0 {
            break;
        }
    }
    ensure_eq!(cost, 0, "requests for 50 re-entries");
    if ctx.harness().capabilities().shared {
        let read = locks.rwlock("nested")?.read().owner(&owner)?.acquire().await?;
        ensure_eq!(read.token()?, token, "a read inside a write");
        let shared = locks.rwlock("shared")?.read().owner(&owner)?.acquire().await?;
        let write = locks.rwlock("shared")?.write().owner(&owner)?.acquire().await;
        refused(write, ErrorKind::WouldDeadlock, "shared to exclusive by the same owner")?;
        shared.release().await?;
    }
    // Another owner, and nobody at all, are shut out.
    ensure!(locks.mutex("nested")?.owner(&other)?.try_acquire().await?.is_none(), "another owner");
    ensure!(locks.mutex("nested")?.try_acquire().await?.is_none(), "no owner");
    outer.release().await?;
    drop(inner);
    let next = until_free(ctx, &locks, "nested").await?;
    ensure!(next.token()? > token, "token {} after {token}", next.token()?);
    let misused = ctx.locks().await?.mutex("nested")?.owner(&owner);
    refused(misused, ErrorKind::Misuse, "an owner of another client").map(drop)
}

/// Two acquisitions of one owner at once are one entry; when the first is cancelled the second goes on.
async fn owner_joins_itself(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let blocker = other.mutex("joined")?.acquire().await?;
    let owner = locks.owner();
    let lock = locks.mutex("joined")?.owner(&owner)?;
    let first = ctx.queued(lock.clone(), &other, 2).await?;
    let mut second = Box::pin(lock.acquire());
    // What it would ask the store for is sent with the first poll, and there before the look of the same client.
    ensure!(futures_util::poll!(&mut second).is_pending(), "the lock is busy");
    locks.inspect("joined").await?;
    ctx.until_line_has(other.backend(), &name("joined")?, 2).await?;
    first.abort();
    blocker.release().await?;
    let guard = ctx.soon("the second acquisition", second).await??;
    ensure!(guard.is_held(), "the second acquisition");
    ctx.until_line_has(other.backend(), &name("joined")?, 1).await
}

/// With renewal on a lock is held for many leases: nobody else gets it, and its deadline never passes.
async fn renewal_is_kept_up(ctx: &Ctx) -> Verdict {
    let lease = ctx.units(10);
    let (locks, other) = (ctx.locks_for(lease).await?, ctx.locks().await?);
    let mut guards = Vec::new();
    for i in 0..10 {
        guards.push(locks.mutex(format!("kept-{i}"))?.acquire().await?);
    }
    let end = ctx.now() + lease * 5 / 2;
    while ctx.now() < end {
        for (i, guard) in guards.iter().enumerate() {
            ensure!(guard.is_held() && guard.token().is_ok(), "lock {i} is lost");
            ensure!(
                other.mutex(format!("kept-{i}"))?.try_acquire().await?.is_none(),
                "lock {i} is held twice"
            );
        }
        tokio::time::sleep(ctx.units(1) / 4).await;
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// Without renewal a lock is lost after one lease: before the store gives it to another.
async fn fixed_lease_ends(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks_for(ctx.units(2)).await?, ctx.locks().await?);
    let guard = locks.mutex("fixed")?.auto_renew(false).acquire().await?;
    let token = guard.token()?;
    let next = acquiring(other.mutex("fixed")?);
    let reason = ctx.soon("the loss is told", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Expired, "why it is lost");
    ensure!(!guard.is_held() && guard.remaining().is_zero(), "held after its loss");
    refused(guard.token(), ErrorKind::Lost, "its token")?;
    refused(guard.reenter(), ErrorKind::Lost, "entering again")?;
    refused(guard.release().await, ErrorKind::Lost, "its release")?;
    let next = ctx.soon("the next one holds", next).await???;
    ensure!(next.token()? > token, "token {} after {token}", next.token()?);
    Ok(())
}

/// The longest hold time ends a hold that renewals keep alive; the lock goes back with its guard.
async fn max_hold_ends_it(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let began = ctx.now();
    let guard = locks.mutex("capped")?.max_hold(ctx.units(2))?.acquire().await?;
    let reason = ctx.soon("the end of the longest hold", guard.lost()).await?;
    ensure_eq!(reason, LossReason::MaxHold, "why it is lost");
    ensure!(ctx.now().saturating_since(began) >= ctx.units(2), "ended too soon");
    ensure!(guard.token().is_err(), "its token");
    ensure!(other.mutex("capped")?.try_acquire().await?.is_none(), "given away while its guard lives");
    drop(guard);
    // The lease is far longer than this case waits: the lock was given back.
    until_free(ctx, &other, "capped").await?.release().await?;
    Ok(())
}

/// A holder whose entry was evicted learns of it at its next renewal; the line has moved on at once.
async fn eviction_is_noticed(ctx: &Ctx) -> Verdict {
    let (locks, admin) = (ctx.locks_for(ctx.units(4)).await?, ctx.locks().await?);
    let guard = locks.mutex("ousted")?.acquire().await?;
    let token = guard.token()?;
    ensure_eq!(admin.evict("ousted", token).await?, Release::Released, "the eviction");
    ensure_eq!(admin.evict("ousted", token).await?, Release::NotHeld, "the second eviction");
    let next = admin.mutex("ousted")?.try_acquire().await?.context("the lock is free at once")?;
    ensure!(next.token()? > token, "token {} after {token}", next.token()?);
    let reason = ctx.soon("the loss is told", guard.lost()).await?;
    ensure!(matches!(reason, LossReason::NotHeld | LossReason::Expired), "{reason:?}");
    refused(guard.release().await, ErrorKind::Lost, "its release")?;
    ensure!(
        next.is_held() && admin.mutex("ousted")?.try_acquire().await?.is_none(),
        "the next holder was hurt"
    );
    Ok(())
}

/// `extend` moves the deadline, and `renewed` tells.
async fn extend_moves_the_deadline(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks_for(ctx.units(10)).await?;
    let guard = locks.mutex("extended")?.auto_renew(false).acquire().await?;
    let (seen, token) = (guard.deadline(), guard.token()?);
    let told = guard.renewed(seen);
    let extended = guard.extend(LONG).await;
    let grows = extended.is_ok();
    if !grows {
        // An entry stays in the session it was made in: then no lease grows beyond what that one carries.
        ensure!(!ctx.harness().capabilities().resume, "an extension was refused: {extended:?}");
        refused(extended, ErrorKind::Unsupported, "more than the session carries")?;
        guard.extend(ctx.units(10)).await?;
    }
    let told = ctx.soon("the new deadline is told", told).await?.context("it is held")?;
    let least = if grows { seen + ctx.units(10) } else { seen };
    ensure!(told > least && guard.deadline() == told, "{told:?} after {seen:?}");
    ensure_eq!(guard.token()?, token, "the token");
    refused(guard.extend(Duration::ZERO).await, ErrorKind::InvalidLease, "no lease")?;
    ensure!(guard.is_held(), "a refused extension lost the lock");
    guard.release().await?;
    Ok(())
}

/// Work under `run` is dropped when the lock is lost, and gives its value when it is not.
async fn run_is_stopped(ctx: &Ctx) -> Verdict {
    let (locks, admin) = (ctx.locks_for(ctx.units(4)).await?, ctx.locks().await?);
    let guard = locks.mutex("run")?.acquire().await?;
    ensure_eq!(guard.run(async { 7 }).await?, 7, "the value of the work");
    // The work has it until it is dropped.
    let kept = Arc::new(());
    let by_work = Arc::clone(&kept);
    let work = async move {
        let _kept = by_work;
        std::future::pending::<()>().await;
    };
    admin.evict("run", guard.token()?).await?;
    refused(ctx.soon("the work is stopped", guard.run(work)).await?, ErrorKind::Lost, "lost work")?;
    ensure_eq!(Arc::strong_count(&kept), 1, "the work was not dropped: who has what it keeps");
    refused(guard.run(async { 7 }).await, ErrorKind::Lost, "work after the loss").map(drop)
}

/// The deadline of a guard lies before the moment the store would give the lock to another, however slow the answer.
async fn deadline_is_before_the_store(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let slow = Arc::new(crate::faults::Gate::late(backend, ctx.units(2)));
    let locks = ctx.client(slow, ctx.units(9), ctx.units(9))?;
    let sent = ctx.now();
    let guard = locks.mutex("slow")?.auto_renew(false).acquire().await?;
    ensure!(ctx.now().saturating_since(sent) >= ctx.units(2), "the answer was not slow");
    // The store may have begun the lease right after the request was sent.
    ensure!(guard.deadline() < sent + guard.ttl(), "the deadline counts from the answer");
    let (before, moved) = (ctx.now(), guard.deadline());
    guard.extend(ctx.units(9)).await?;
    ensure!(guard.deadline() > moved, "the renewal moved nothing");
    ensure!(guard.deadline() < before + guard.ttl(), "the deadline counts from the renewal's answer");
    Ok(())
}

/// A guard dropped in a runtime, outside, while panicking: no panic, no waiting, and the lock comes free.
async fn drop_in_every_state(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    for round in 0..ctx.many(5) {
        for state in ["task", "thread", "panic", "thread panic", "forgotten future"] {
            let name = format!("dropped-{state}-{round}");
            let lock = locks.mutex(&name)?;
            match state {
                "task" => drop(lock.acquire().await?),
                "thread" => {
                    let guard = lock.acquire().await?;
                    let thread = std::thread::spawn(move || drop(guard));
                    ensure!(
                        tokio::task::spawn_blocking(|| thread.join()).await?.is_ok(),
                        "the drop panicked"
                    );
                }
                "panic" => {
                    let work = async {
                        let _guard = lock.acquire().await;
                        panic_on_purpose();
                    };
                    ensure!(AssertUnwindSafe(work).catch_unwind().await.is_err(), "no panic");
                }
                "thread panic" => {
                    let guard = lock.acquire().await?;
                    let thread = std::thread::spawn(move || {
                        let _guard = guard;
                        panic_on_purpose();
                    });
                    ensure!(tokio::task::spawn_blocking(|| thread.join()).await?.is_err(), "no panic");
                }
                _ => {
                    // Finished, and never looked at.
                    let task = acquiring(lock);
                    ctx.until_line_has(other.backend(), &crate::ctx::name(&name)?, 1).await?;
                    drop(task);
                }
            }
            until_free(ctx, &other, &name).await.context(state)?.release().await?;
        }
    }
    Ok(())
}

/// Guards dropped while their runtime shuts down, and after it is gone: no panic, and the lease frees the lock.
async fn drop_at_shutdown(ctx: &Ctx) -> Verdict {
    let other = ctx.locks().await?;
    let lease = ctx.units(3);
    for state in ["in a task", "after the runtime"] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let backend = ctx.backend_on(runtime.handle()).await?;
        let locks = {
            let _inside = runtime.enter();
            ctx.client(backend, lease, lease)?
        };
        let lock = locks.mutex(state)?;
        let acquired = runtime.spawn(async move { lock.acquire().await });
        let guard = ctx.soon("the guard", acquired).await???;
        let kept = if state == "in a task" {
            runtime.spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            None
        } else {
            Some(guard)
        };
        let done = tokio::task::spawn_blocking(move || {
            runtime.shutdown_timeout(Duration::from_secs(5));
            // Outside any runtime: on a plain thread.
            std::thread::spawn(move || drop((kept, locks))).join().is_ok()
        });
        ensure!(ctx.soon("the runtime ends", done).await??, "{state}: a drop panicked");
        until_free(ctx, &other, state).await?.release().await?;
    }
    Ok(())
}

/// A waiter that is dropped leaves the line, wherever it stands, and the line behind it moves on.
async fn waiting_is_dropped(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    for position in 0..3 {
        let text = format!("left-{position}");
        let holder = other.mutex(&text)?.acquire().await?;
        let mut waiters = Vec::new();
        for i in 0..3 {
            waiters.push(ctx.queued(locks.mutex(&text)?, &other, i + 2).await?);
        }
        waiters.remove(position).abort();
        ctx.until_line_has(other.backend(), &name(&text)?, 3).await?;
        holder.release().await?;
        for waiter in waiters {
            ctx.soon("the next in the line", waiter).await???.release().await?;
        }
    }
    ensure_eq!(locks.pending(), 0, "what is owed at the end");
    Ok(())
}

/// A client of a later token epoch gets larger tokens than any of an earlier one, and the same line.
async fn epochs_lift_tokens(ctx: &Ctx) -> Verdict {
    let mut last = 0;
    for epoch in [0_u16, 1, 2, 0x7ffe] {
        let mut settings = onelock_core::Settings::default();
        settings.token_epoch = onelock_core::TokenEpoch::new(epoch)?;
        let locks = Locks::builder(ctx.backend().await?).clock(ctx.clock()).settings(settings).build()?;
        let guard = locks.mutex("epoch")?.acquire().await?;
        let token = guard.token()?;
        ensure!(token.get() > last, "token {token} of epoch {epoch} after {last}");
        last = token.get();
        let line = locks.inspect("epoch").await?;
        ensure_eq!(line.holders.first().map(|h| h.token), Some(token), "the token shown");
        ensure_eq!(locks.evict("epoch", token).await?, Release::Released, "an eviction by the token shown");
        drop(guard);
    }
    Ok(())
}
