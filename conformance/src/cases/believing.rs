//! What a client believes: never more than the store gave, counted from before it asked, looked at again at every look.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::toolkit::{Layer, Layered};
use onelock_core::{Backend, ErrorKind, Renewal, Renewed, Request, Result, Standing};

use crate::aside::Aside;
use crate::case::table;
use crate::ctx::{Ctx, in_time};
use crate::faults::Gate;
use crate::verdict::Verdict;
use crate::{ensure, ensure_eq};

table! {
    deadline_follows_what_the_store_gave: [], [], 60;
    late_answer_is_no_hold: [], [], 60;
    first_look_after_a_stall: [], [], 60;
}

/// A store that gives no more than `most`, and says so.
#[derive(Debug)]
struct Stingy {
    inner: Arc<dyn Backend>,
    most: Duration,
}

#[async_trait]
impl Layer for Stingy {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.inner.acquire(&request.clone().lease(request.lease.min(self.most))).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let less =
            |due: &Renewal| Renewal::new(due.ticket.clone(), due.lease.min(self.most), due.waiter_lease);
        self.inner.renew(&due.iter().map(less).collect::<Vec<_>>()).await
    }
}

/// A store that gives a shorter lease than it was asked for is believed that long, for a grant and for a renewal.
async fn deadline_follows_what_the_store_gave(ctx: &Ctx) -> Verdict {
    let (asked, most) = (ctx.units(40), ctx.units(4));
    let stingy = Arc::new(Layered(Stingy { inner: ctx.backend().await?, most }));
    let locks = ctx.client(stingy, asked, asked)?;
    let guard = locks.mutex("stingy")?.auto_renew(false).acquire().await?;
    let believed = |after: &str| {
        // A store may round up, but by far not to what was asked.
        let given = guard.ttl();
        ensure!(given < asked / 2, "{after}: the store was asked for {most:?} and gave {given:?}");
        ensure!(guard.deadline() < ctx.now() + given, "{after}: believed for longer than {given:?}");
        Ok(())
    };
    believed("a grant")?;
    match guard.extend(asked).await {
        Ok(()) => believed("a renewal")?,
        // An entry stays in the session it was made in.
        Err(refused) => ensure_eq!(refused.kind(), ErrorKind::Unsupported, "an extension"),
    }
    guard.release().await?;
    Ok(())
}

/// A grant whose answer comes when its lease is over is not held, and what is left of it is given back.
async fn late_answer_is_no_hold(ctx: &Ctx) -> Verdict {
    let other = ctx.locks().await?;
    let slow = Arc::new(Gate::late(ctx.backend().await?, ctx.units(5)));
    let locks = ctx.client(slow, ctx.units(3), ctx.units(3))?;
    let names = ["late-answer-tried", "late-answer-timed"];
    let (tried, timed) = (locks.mutex(names[0])?, locks.mutex(names[1])?);
    let sent = ctx.now();
    let (tried, timed) = tokio::join!(tried.try_acquire(), timed.acquire_timeout(ctx.units(6)));
    ensure!(ctx.now().saturating_since(sent) >= ctx.units(5), "the answer was not late");
    for (text, got) in names.into_iter().zip([in_time(tried)?, in_time(timed)?]) {
        ensure!(got.is_none(), "`{text}`: an answer that took longer than its lease was taken for a hold");
        let next = ctx.soon("the lock comes free", other.mutex(text)?.acquire()).await??;
        next.release().await?;
    }
    Ok(())
}

/// A process that stalled for longer than its lease sees so at its first look, before any timer or task has run.
async fn first_look_after_a_stall(ctx: &Ctx) -> Verdict {
    let aside = Aside::start()?;
    let backend = ctx.backend_on(&aside.handle).await?;
    let locks = aside.client(ctx, backend, ctx.units(3), ctx.units(3))?;
    let (lock, stall) = (locks.mutex("stall")?, ctx.units(5));
    let looked = aside.handle.spawn(async move {
        let guard = lock.acquire().await?;
        let before = guard.is_held();
        // Blocks the thread on purpose.
        std::thread::sleep(stall);
        let after = (guard.is_held(), guard.token().is_ok(), guard.remaining());
        Ok::<_, onelock_core::Error>((before, after))
    });
    let (before, after) = ctx.soon("the look", looked).await???;
    ensure!(before, "lost before the stall: the machine is too slow for this unit");
    ensure_eq!(after, (false, false, Duration::ZERO), "is_held, token and remaining after the stall");
    aside.end().await
}
