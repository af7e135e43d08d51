//! What every store answers in the same way, once.

use std::fmt;
use std::future::Future;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, check_prefix};
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

/// A store whose constructor and driver give this answer nothing but its verbs.
///
/// - After [`Backend::close`] every verb fails with [`ErrorKind::Closed`], and so does a `wait`, `inspect` or `list` that is under way
///   (C20). To end other calls is the store's.
/// - What is not declared is refused with [`ErrorKind::Unsupported`] (C18): modes, a lock-delay, `raise` and `list`. The
///   store answers those by [`undeclared`].
/// - An error names the verb and the store's address.
/// - `renew` is asked for no more than [`Capabilities::max_batch`] entries at once, and never for none; `list` only for what can begin a name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock_core::Result<()> {
/// use onelock_core::store::Checked;
/// use onelock_core::{Backend, BootClock, ErrorKind, LockName, MemoryBackend, MemoryStore};
///
/// let verbs = MemoryBackend::new(&MemoryStore::new(std::sync::Arc::new(BootClock)));
/// let store = Checked::over(verbs);
/// store.close().await?;
/// let refused = store.inspect(&LockName::new("orders")?).await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Closed); // by what is around the store
/// # Ok(())
/// # }
/// ```
pub struct Checked<B> {
    store: B,
    info: Info,
    closed: watch::Sender<bool>,
}

impl<B: Backend> Checked<B> {
    /// This store, whose verbs need not answer that.
    #[must_use]
    pub fn over(store: B) -> Self {
        Self { info: store.info(), store, closed: watch::Sender::new(false) }
    }

    /// The store itself.
    #[must_use]
    pub fn store(&self) -> &B {
        &self.store
    }

    /// What a verb comes to: the store's answer, unless the client is closed, or the store does not offer it.
    async fn checked<T>(
        &self,
        verb: &'static str,
        offered: impl FnOnce(&Capabilities, &str) -> Result<()>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let allowed = match *self.closed.borrow() {
            true => Err(closed(&self.info.scheme)),
            false => offered(&self.store.capabilities(), &self.info.scheme),
        };
        let answer = match allowed {
            Ok(()) => call.await,
            Err(refused) => Err(refused),
        };
        answer.map_err(|error| error.during(verb).at(&self.info.address))
    }

    /// Ends when the client is closed: for calls that change nothing.
    async fn until_closed<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut closing = self.closed.subscribe();
        tokio::select! {
            biased;
            // The sender lives in `self`.
            _ = closing.wait_for(|closed| *closed) => Err(closed(&self.info.scheme)),
            answer = call => answer,
        }
    }
}

fn closed(store: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("this client of {store} has been closed"))
}

/// What a store answers to what it does not declare: [`Checked`] says so before it is asked.
///
/// # Errors
/// [`ErrorKind::Unsupported`], always.
pub fn undeclared<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "the store does not offer this"))
}

fn any(_: &Capabilities, _: &str) -> Result<()> {
    Ok(())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Checked<B> {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let offered = |has: &Capabilities, store: &str| {
            has.check_mode(request.mode, store)?;
            has.require(has.delay || request.delay.is_zero(), "delay", store)
        };
        self.checked("acquire", offered, self.store.acquire(request)).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.checked("wait", any, self.until_closed(self.store.wait(ticket))).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::with_capacity(due.len());
        for part in due.chunks(self.store.capabilities().max_batch.max(1)) {
            let renewed = self.checked("renew", any, async { Ok(self.store.renew(part).await) }).await;
            let renewed = renewed.unwrap_or_else(|error| vec![Err(error); part.len()]);
            answers.extend(
                renewed
                    .into_iter()
                    .map(|answer| answer.map_err(|e| e.during("renew").at(&self.info.address))),
            );
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.checked("release", any, self.store.release(ticket)).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let offered = |has: &Capabilities, store: &str| has.require(has.raise, "raise", store);
        self.checked("raise", offered, self.store.raise(ticket, token)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.checked("inspect", any, self.until_closed(self.store.inspect(name))).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let offered = |has: &Capabilities, store: &str| {
            has.require(has.list, "list", store)?;
            check_prefix(prefix)
        };
        self.checked("list", offered, self.until_closed(self.store.list(prefix, page))).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.checked("evict", any, self.store.evict(name, token)).await
    }

    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        self.store.close().await.map_err(|error| error.during("close").at(&self.info.address))
    }
}

/// That of the store.
impl<B: Backend> fmt::Debug for Checked<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[cfg(test)]
#[path = "checked_tests.rs"]
mod tests;
