//! A store whose answers take long to arrive.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, FencingToken, Info, Listing, LockName, Page, Raise, Release, Renewal, Renewed,
    Request, Result, Snapshot, Standing, Ticket, Wake,
};

/// A backend whose answers arrive `late` after the store gave them.
#[derive(Debug)]
pub struct Slow {
    inner: Arc<dyn Backend>,
    late: Duration,
}

impl Slow {
    /// Delays the answers of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, late: Duration) -> Self {
        Self { inner, late }
    }

    async fn delay<T>(&self, call: impl Future<Output = T>) -> T {
        let answer = call.await;
        tokio::time::sleep(self.late).await;
        answer
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Slow {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.delay(self.inner.acquire(request)).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.delay(self.inner.wait(ticket)).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.delay(self.inner.renew(due)).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.delay(self.inner.release(ticket)).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.delay(self.inner.raise(ticket, token)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.delay(self.inner.inspect(name)).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.delay(self.inner.list(prefix, page)).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.delay(self.inner.evict(name, token)).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
