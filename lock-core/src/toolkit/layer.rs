//! A store around another.

use std::fmt::Debug;
use std::future::Future;

use async_trait::async_trait;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

/// What happens on the way to the store behind: [`Layered`] makes a store of it. A method that is not written passes its
/// verb on, by way of [`Layer::pass`].
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use onelock_core::toolkit::{Layer, Layered};
/// use onelock_core::{Backend, Locks, Result};
///
/// #[derive(Debug)]
/// struct Counted {
///     inner: Arc<dyn Backend>,
///     calls: Arc<AtomicU64>,
/// }
///
/// impl Layer for Counted {
///     fn inner(&self) -> &dyn Backend {
///         &*self.inner
///     }
///
///     async fn pass<T: Send>(&self, _verb: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
///         self.calls.fetch_add(1, Ordering::Relaxed);
///         call.await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let inner = Arc::clone(onelock::connect("memory://").await?.backend());
/// let calls = Arc::new(AtomicU64::new(0));
/// let counted = Layered(Counted { inner, calls: Arc::clone(&calls) });
/// let locks = Locks::builder(Arc::new(counted)).build()?;
/// locks.mutex("orders/42")?.acquire().await?.release().await?;
/// assert_eq!(calls.load(Ordering::Relaxed), 2);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Each verb: those of the store behind, and what the layer says.
///
/// # Cancel safety
/// That of the store behind, while `pass` keeps it.
#[async_trait]
pub trait Layer: Debug + Send + Sync + 'static {
    /// The store behind; asked for where a call is polled, so that [`Layer::pass`] may make it first.
    fn inner(&self) -> &dyn Backend;

    /// One call on its way: `call` asks the store behind, `verb` is the name of its method. `close` does not come by here.
    fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let _ = verb;
        call
    }

    /// As [`Backend::info`].
    fn info(&self) -> Info {
        self.inner().info()
    }

    /// As [`Backend::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// As [`Backend::acquire`].
    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.pass("acquire", async { self.inner().acquire(request).await }).await
    }

    /// As [`Backend::wait`].
    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.pass("wait", async { self.inner().wait(ticket).await }).await
    }

    /// As [`Backend::renew`]: one call; where it fails every answer says so.
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let renewed = self.pass("renew", async { Ok(self.inner().renew(due).await) }).await;
        renewed.unwrap_or_else(|error| vec![Err(error); due.len()])
    }

    /// As [`Backend::release`].
    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.pass("release", async { self.inner().release(ticket).await }).await
    }

    /// As [`Backend::raise`].
    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.pass("raise", async { self.inner().raise(ticket, token).await }).await
    }

    /// As [`Backend::inspect`].
    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.pass("inspect", async { self.inner().inspect(name).await }).await
    }

    /// As [`Backend::list`].
    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.pass("list", async { self.inner().list(prefix, page).await }).await
    }

    /// As [`Backend::evict`].
    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.pass("evict", async { self.inner().evict(name, token).await }).await
    }

    /// As [`Backend::close`].
    async fn close(&self) -> Result<()> {
        self.inner().close().await
    }
}

/// The store that a [`Layer`] makes of the one behind it.
#[derive(Debug)]
pub struct Layered<L>(pub L);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Layer> Backend for Layered<L> {
    fn info(&self) -> Info {
        self.0.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.0.acquire(request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.0.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.0.renew(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.0.release(ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.0.raise(ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.0.list(prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.0.evict(name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
