//! A store seen through a prefix of all names.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise, Release,
    Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

/// Puts a prefix before every name on the way to the store, and takes it off on the way back.
#[derive(Debug)]
pub(super) struct Scoped {
    inner: Arc<dyn Backend>,
    prefix: String,
}

impl Scoped {
    pub(super) fn new(inner: Arc<dyn Backend>, prefix: String) -> Self {
        Self { inner, prefix }
    }

    fn there(&self, name: &LockName) -> Result<LockName> {
        LockName::new(format!("{}{name}", self.prefix))
    }

    fn here(&self, name: &LockName) -> Result<LockName> {
        let foreign = || Error::new(ErrorKind::Protocol, "the store shows a name that was not asked for");
        LockName::new(name.as_str().strip_prefix(&self.prefix).ok_or_else(foreign)?)
    }

    fn ticket(&self, ticket: &Ticket) -> Result<Ticket> {
        let mut there = ticket.clone();
        there.name = self.there(&ticket.name)?;
        Ok(there)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Scoped {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let mut there = request.clone();
        there.name = self.there(&request.name)?;
        self.inner.acquire(&there).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.inner.wait(&self.ticket(ticket)?).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let there = |due: &Renewal| Ok(Renewal::new(self.ticket(&due.ticket)?, due.lease, due.waiter_lease));
        match due.iter().map(there).collect::<Result<Vec<_>>>() {
            Ok(due) => self.inner.renew(&due).await,
            Err(error) => vec![Err(error); due.len()],
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.inner.release(&self.ticket(ticket)?).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.inner.raise(&self.ticket(ticket)?, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut shown = self.inner.inspect(&self.there(name)?).await?;
        shown.name = self.here(&shown.name)?;
        Ok(shown)
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let mut listing = self.inner.list(&format!("{}{prefix}", self.prefix), page).await?;
        for listed in &mut listing.names {
            listed.name = self.here(&listed.name)?;
        }
        Ok(listing)
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.inner.evict(&self.there(name)?, token).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
