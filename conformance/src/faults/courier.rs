//! A store that keeps its pushes ready, however long its client stands still.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise, Release,
    Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::runtime::Handle;

/// A backend whose waiting goes on elsewhere: what was pushed while the client stood still is there when it goes on, as
/// it would be in the buffer of a socket.
#[derive(Debug)]
pub struct Courier {
    inner: Arc<dyn Backend>,
    elsewhere: Handle,
}

impl Courier {
    /// Lets `inner` wait on the runtime `elsewhere`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, elsewhere: &Handle) -> Self {
        Self { inner, elsewhere: elsewhere.clone() }
    }
}

/// Ends what waits elsewhere when nobody waits here.
struct Errand(tokio::task::JoinHandle<Result<Wake>>);

impl Drop for Errand {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Courier {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.inner.acquire(request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let (inner, ticket) = (Arc::clone(&self.inner), ticket.clone());
        let mut errand = Errand(self.elsewhere.spawn(async move { inner.wait(&ticket).await }));
        let ended = (&mut errand.0).await;
        ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "nobody waits there any more")))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.inner.renew(due).await
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
