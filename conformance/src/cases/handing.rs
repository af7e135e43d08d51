//! Locks that outlive who took them: handed over, or kept for a least time.

use std::sync::Arc;

use futures_util::future::try_join_all;
use onelock_core::client::Locks;
use onelock_core::{ErrorKind, HandOver, LossReason, MemoryBackend, MemoryStore};

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, listed};
use crate::verdict::{Context as _, Stop, Verdict};
use crate::worker::Worker;
use crate::{ensure, ensure_eq, fail};

const RESUME: Need = Need::Can("resume");

table! {
    hand_over_survives_its_giver: [], [Need::Processes, RESUME], 90;
    used_hand_overs_are_refused: [], [RESUME], 60;
    at_least_after_a_crash: [5, 7], [Need::Processes, RESUME], 120;
}

/// When a giver is killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    BeforeItHasGiven,
    Before,
    During,
    After,
}

/// A lock that was handed over outlives its giver, whenever that is killed, and is not free in between; one that was not
/// comes free.
async fn hand_over_survives_its_giver(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let all = [Killed::BeforeItHasGiven, Killed::Before, Killed::During, Killed::After];
    try_join_all(all.map(|killed| giver(ctx, killed, &locks, &other))).await?;
    ctx.nothing_left(&[locks, other]).await
}

async fn giver(ctx: &Ctx, killed: Killed, locks: &Locks, other: &Locks) -> Verdict {
    let text = format!("hand-{killed:?}");
    let mut worker = Worker::start(ctx, ctx.units(8))?;
    let (token, _) = worker.acquire(&text).await?;
    let next = ctx.queued(other.mutex(&text)?, other, 2).await?;
    worker.send(&format!("hand {text}")).await?;
    if matches!(killed, Killed::BeforeItHasGiven) {
        worker.kill().await?;
        // It may have died between its claim and its answer. Nobody asks for the claim again but who looks.
        let lists = other.capabilities().list;
        let claims = if lists { listed(other.backend(), "onelock.handover/", 10).await? } else { Vec::new() };
        for claim in claims {
            let gone = async || Ok(other.inspect(&claim.name).await?.holders.is_empty().then_some(()));
            ctx.eventually("the claim has ended", gone).await?;
        }
    } else {
        let given: HandOver = worker.answer().await?.parse()?;
        let guard = match killed {
            Killed::During => {
                let (dead, guard) = tokio::join!(worker.kill(), locks.resume(given));
                dead?;
                guard?
            }
            Killed::After => {
                let guard = locks.resume(given).await?;
                worker.kill().await?;
                guard
            }
            _ => {
                worker.kill().await?;
                locks.resume(given).await?
            }
        };
        ensure_eq!(guard.token()?.get(), token, "the token of what was handed over");
        let over = ctx.now() + guard.ttl();
        let renewed = async || Ok((guard.deadline() > over).then_some(()));
        ctx.eventually("it is renewed", renewed).await?;
        ensure!(guard.is_held() && !next.is_finished(), "{killed:?}: two hold");
        guard.release().await?;
    }
    let next = ctx.soon("the next one holds", next).await???;
    ensure!(next.token()?.get() > token, "token {} after {token}", next.token()?);
    Ok(next.release().await?)
}

/// A hand-over that was used, has expired, was changed or is of another store is refused with its reason, and hurts nobody.
async fn used_hand_overs_are_refused(ctx: &Ctx) -> Verdict {
    const NAME: &str = "handed-once";
    let (a, b) = (ctx.locks_for(ctx.units(3)).await?, ctx.locks().await?);
    let refused = async |given: &HandOver| {
        for locks in [&a, &b] {
            let error = locks.resume(given.clone()).await.err().context("a second holder")?;
            ensure_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::NotHeld)), "{error}");
        }
        Ok::<_, Stop>(())
    };
    let given = a.mutex(NAME)?.acquire().await?.hand_over().await?;
    let both = tokio::join!(a.resume(given.clone()), b.resume(given.clone()));
    let guard = match both {
        (Ok(guard), Err(error)) | (Err(error), Ok(guard)) => {
            ensure_eq!(error.kind(), ErrorKind::Lost, "{error}");
            guard
        }
        both => fail!("two that resume: {both:?}"),
    };
    refused(&given).await?;
    ensure!(guard.is_held() && b.mutex(NAME)?.try_acquire().await?.is_none(), "the holder was hurt");
    guard.release().await?;

    let given = a.mutex(NAME)?.acquire().await?.hand_over().await?;
    let text = String::from(given.clone());
    for i in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[i] ^= 1;
        let read = String::from_utf8(changed)?.parse::<HandOver>();
        ensure_eq!(read.err().map(|error| error.kind()), Some(ErrorKind::Foreign), "byte {i}");
    }
    let next = ctx.soon("it has expired", b.mutex(NAME)?.acquire()).await??;
    refused(&given).await?;
    let elsewhere = Arc::new(MemoryBackend::new(&MemoryStore::new(ctx.clock())));
    let elsewhere = ctx.client(elsewhere, LONG, LONG)?;
    refused(&elsewhere.mutex(NAME)?.acquire().await?.hand_over().await?).await?;
    ensure!(next.is_held(), "the holder was hurt");
    next.release().await?;
    ctx.nothing_left(&[a, b]).await
}

/// A lock with a least time stays taken for it when its holder is killed, and when the holder has released it and is killed then.
async fn at_least_after_a_crash(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let one = async |released: bool| {
        let (text, least) = (format!("least-{released}"), ctx.units(6));
        let mut worker = Worker::start(ctx, ctx.units(2))?;
        let asked = ctx.now();
        worker.send(&format!("least {text} {}", least.as_millis())).await?;
        let (token, _) = worker.acquired().await?;
        if released {
            worker.send(&format!("release {text}")).await?;
            ensure_eq!(worker.answer().await?, "released", "its release");
        }
        worker.kill().await?;
        let next = ctx.soon("the least time is over", locks.mutex(&text)?.acquire()).await??;
        let stayed = ctx.now().saturating_since(asked) + locks.capabilities().granularity;
        ensure!(stayed >= least, "released: {released}; it stayed for {stayed:?} of {least:?}");
        ensure!(next.token()?.get() > token, "token {} after {token}", next.token()?);
        Ok(next.release().await?)
    };
    tokio::try_join!(one(false), one(true))?;
    ctx.nothing_left(&[locks]).await
}
