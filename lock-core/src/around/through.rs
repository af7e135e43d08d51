//! A store that has to be opened before it can be asked.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

/// The way to the store.
#[async_trait]
pub(crate) trait Way: Debug + Send + Sync + 'static {
    fn info(&self) -> Info;
    fn capabilities(&self) -> Capabilities;
    /// The store, for one call.
    async fn store(&self) -> Result<Arc<dyn Backend>>;
    async fn close(&self) -> Result<()>;
}

#[derive(Debug)]
pub(crate) struct Through<W>(pub(crate) W);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<W: Way> Backend for Through<W> {
    fn info(&self) -> Info {
        self.0.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.0.store().await?.acquire(request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.0.store().await?.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.0.store().await {
            Ok(store) => store.renew(due).await,
            Err(error) => vec![Err(error); due.len()],
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.0.store().await?.release(ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.0.store().await?.raise(ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.0.store().await?.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.0.store().await?.list(prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.0.store().await?.evict(name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
