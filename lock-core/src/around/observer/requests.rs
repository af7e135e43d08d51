//! A store whose requests are observed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use super::{Event, Observers};
use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

#[derive(Debug)]
pub(crate) struct Observed {
    store: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    observers: Arc<Observers>,
    /// The last call has failed in a way that a retry may help.
    down: AtomicBool,
}

impl Observed {
    pub(crate) fn over(
        store: Arc<dyn Backend>,
        clock: &Arc<dyn Clock>,
        observers: &Arc<Observers>,
    ) -> Arc<dyn Backend> {
        let (clock, observers) = (Arc::clone(clock), Arc::clone(observers));
        Arc::new(Self { store, clock, observers, down: AtomicBool::new(false) })
    }

    fn observed<T>(&self, verb: &'static str, sent: Timestamp, answer: Result<T>) -> Result<T> {
        self.tell(verb, sent, answer.as_ref().err());
        answer
    }

    fn tell(&self, verb: &'static str, sent: Timestamp, failure: Option<&Error>) {
        let (store, took) = (&*self.observers.store, self.clock.now().saturating_since(sent));
        self.observers.tell(None, &Event::Request { store, verb, failure, took });
        let down = failure.is_some_and(Error::is_retryable);
        if down != self.down.load(Ordering::Relaxed) && self.down.swap(down, Ordering::Relaxed) && !down {
            self.observers.tell(None, &Event::Reconnected { store });
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Observed {
    fn info(&self) -> Info {
        self.store.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let sent = self.clock.now();
        self.observed("acquire", sent, self.store.acquire(request).await)
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let sent = self.clock.now();
        self.observed("wait", sent, self.store.wait(ticket).await)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let sent = self.clock.now();
        let answers = self.store.renew(due).await;
        self.tell("renew", sent, answers.iter().find_map(|answer| answer.as_ref().err()));
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let sent = self.clock.now();
        self.observed("release", sent, self.store.release(ticket).await)
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let sent = self.clock.now();
        self.observed("raise", sent, self.store.raise(ticket, token).await)
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let sent = self.clock.now();
        self.observed("inspect", sent, self.store.inspect(name).await)
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let sent = self.clock.now();
        self.observed("list", sent, self.store.list(prefix, page).await)
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let sent = self.clock.now();
        let answer = self.observed("evict", sent, self.store.evict(name, token).await);
        if let Ok(Release::Released) = answer {
            self.observers.tell(None, &Event::Evicted { name, token });
        }
        answer
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
