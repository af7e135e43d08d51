//! What a client believes: never more than the store gave, counted from before it asked, looked at again at every look.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise, Release, Renewal,
    Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use crate::case::table;
use crate::ctx::{Ctx, in_time};
use crate::faults::Slow;
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
#[deny(clippy::missing_trait_methods)]
impl Backend for Stingy {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.inner.acquire(&request.clone().lease(request.lease.min(self.most))).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.inner.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let less =
            |due: &Renewal| Renewal::new(due.ticket.clone(), due.lease.min(self.most), due.waiter_lease);
        self.inner.renew(&due.iter().map(less).collect::<Vec<_>>()).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.inner.release(ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.inner.raise(ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.inner.list(prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.inner.evict(name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// A store that gives a shorter lease than it was asked for is believed that long, for a grant and for a renewal.
async fn deadline_follows_what_the_store_gave(ctx: &Ctx) -> Verdict {
    let (asked, most) = (ctx.units(40), ctx.units(4));
    let stingy = Arc::new(Stingy { inner: ctx.backend().await?, most });
    let locks = ctx.client(stingy, asked, asked)?;
    let guard = locks.mutex("stingy")?.auto_renew(false).acquire().await?;
    // A store may round up, but by far not to what was asked.
    let given = guard.ttl();
    ensure!(given < asked / 2, "the store was asked for {most:?} and gave {given:?}");
    ensure!(guard.deadline() < ctx.now() + given, "believed for longer than the {given:?} that were given");
    match guard.extend(asked).await {
        Ok(()) => {
            let given = guard.ttl();
            ensure!(given < asked / 2, "the store was asked for {most:?} and gave {given:?}");
            ensure!(
                guard.deadline() < ctx.now() + given,
                "after a renewal believed for longer than {given:?}"
            );
        }
        // An entry stays in the session it was made in.
        Err(refused) => ensure_eq!(refused.kind(), ErrorKind::Unsupported, "an extension"),
    }
    guard.release().await?;
    Ok(())
}

/// A grant whose answer comes when its lease is over is not held, and what is left of it is given back.
async fn late_answer_is_no_hold(ctx: &Ctx) -> Verdict {
    let other = ctx.locks().await?;
    let slow = Arc::new(Slow::new(ctx.backend().await?, ctx.units(5)));
    let locks = ctx.client(slow, ctx.units(3), ctx.units(3))?;
    let names = ["late-answer-tried", "late-answer-timed"];
    let (tried, timed) = (locks.mutex(names[0])?, locks.mutex(names[1])?);
    let sent = ctx.now();
    let (tried, timed) = tokio::join!(tried.try_acquire(), timed.acquire_timeout(ctx.units(6)));
    ensure!(ctx.now().saturating_since(sent) >= ctx.units(5), "the answer was not late");
    for (text, got) in names.into_iter().zip([tried?, in_time(timed)?]) {
        ensure!(got.is_none(), "`{text}`: an answer that took longer than its lease was taken for a hold");
        let next = ctx.soon("the lock comes free", other.mutex(text)?.acquire()).await??;
        next.release().await?;
    }
    Ok(())
}

/// A process that stood still for longer than its lease sees so at its first look, before any timer or task has run.
async fn first_look_after_a_stall(ctx: &Ctx) -> Verdict {
    // One thread: whoever blocks it blocks timers and renewals alike.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        // Driven until the case is over, whichever way that comes.
        let _over = runtime.block_on(ended);
    });
    let backend = ctx.backend_on(&handle).await?;
    let locks = {
        let _inside = handle.enter();
        ctx.client(backend, ctx.units(3), ctx.units(3))?
    };
    let (lock, stall) = (locks.mutex("stall")?, ctx.units(5));
    let looked = handle.spawn(async move {
        let guard = lock.acquire().await?;
        let before = guard.is_held();
        // Blocks the thread on purpose.
        std::thread::sleep(stall);
        let after = (guard.is_held(), guard.token().is_ok(), guard.remaining());
        Ok::<_, onelock_core::Error>((before, after))
    });
    let (before, after) = ctx.soon("the look", looked).await???;
    let _over = end.send(());
    ensure!(before, "lost before the stall: the machine is too slow for this unit");
    ensure_eq!(after, (false, false, Duration::ZERO), "is_held, token and remaining after the stall");
    let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await?;
    ensure!(joined, "the thread panicked");
    Ok(())
}
