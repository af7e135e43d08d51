//! A gate around a backend, for stores that have no network to cut.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise, Release,
    Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};

use super::{Fault, Link};

/// How long a call on a cut link takes to fail.
const PATIENCE: Duration = Duration::from_millis(100);

/// A backend behind a [`Link`]: fails as a networked store would, and counts the requests.
#[derive(Debug)]
pub struct Gate {
    inner: Arc<dyn Backend>,
    link: Arc<Link>,
}

impl Gate {
    /// Puts `inner` behind `link`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, link: &Arc<Link>) -> Self {
        Self { inner, link: Arc::clone(link) }
    }

    async fn pass<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.link.count();
        match self.link.now() {
            Fault::None => call.await,
            Fault::Reset => Err(reset()),
            Fault::Stall => {
                tokio::time::sleep(PATIENCE).await;
                Err(no_answer())
            }
            Fault::LoseReplies => {
                let _lost = call.await;
                tokio::time::sleep(PATIENCE).await;
                Err(no_answer())
            }
        }
    }
}

fn reset() -> Error {
    Error::new(ErrorKind::Unavailable, "the link is cut")
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Timeout, "the link lost the request or its reply")
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Gate {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.pass(self.inner.acquire(request)).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let cut = self.link.until(|fault| *fault == Fault::Reset);
        let woken = tokio::select! {
            biased;
            () = cut => return Err(reset()),
            woken = self.inner.wait(ticket) => woken?,
        };
        // What the store told while the link was down arrives when it is up again.
        self.link.until(|fault| *fault == Fault::None).await;
        Ok(woken)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.pass(async { Ok(self.inner.renew(due).await) }).await {
            Ok(answers) => answers,
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.pass(self.inner.release(ticket)).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.pass(self.inner.raise(ticket, token)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.pass(self.inner.inspect(name)).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.pass(self.inner.list(prefix, page)).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.pass(self.inner.evict(name, token)).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
