//! The store: its verbs, each asked of what the client shares.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, EntryView, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::task::JoinHandle;

use super::Setup;
use super::asked;
use super::dialect::{self, Answer, Ask, Dialect, Session, Whom};
use super::shared::Shared;
use super::spares::Stale;

/// The store, over one dialect.
pub(super) struct SessionStore<D: Dialect> {
    shared: Arc<Shared<D>>,
    tend: JoinHandle<()>,
}

impl<D: Dialect> SessionStore<D> {
    /// Takes in the sessions that opening has made: one for locks, and one to look.
    pub(super) fn new(setup: Setup, dialect: D, first: Session<D::Conn>, side: Session<D::Conn>) -> Self {
        let shared = Arc::new(Shared::new(setup, dialect, side));
        shared.spares.give(first);
        let tend = tokio::spawn(tend(Arc::clone(&shared)));
        Self { shared, tend }
    }

    fn named<T>(&self, operation: &'static str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.during(operation).at(&self.shared.setup.info.address))
    }

    fn unsupported<T>(&self, operation: &'static str, what: &str) -> Result<T> {
        let text = format!("{} has no {what}; `onelock stores` shows which stores do", D::SCHEME);
        self.named(operation, Err(Error::new(ErrorKind::Unsupported, text)))
    }
}

/// Keeps a few sessions for the next lock, and closes the rest.
async fn tend<D: Dialect>(shared: Arc<Shared<D>>) {
    loop {
        shared.spares.more.notified().await;
        loop {
            let (stale, next) = shared.spares.stale();
            for stale in stale {
                let Stale::Settle(session) = stale else { continue };
                let beat = Ask::Beat { idle: Some(Duration::ZERO) };
                let mut settle = asked::ask(&shared.dialect, session, beat);
                if let Some((session, Ok(_))) = settle.within(shared.limit()).await {
                    shared.spares.give(session);
                }
            }
            let Some(next) = next else { break };
            tokio::time::sleep(next).await;
        }
    }
}

impl<D: Dialect> Drop for SessionStore<D> {
    fn drop(&mut self) {
        self.tend.abort();
    }
}

impl<D: Dialect> fmt::Debug for SessionStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("info", &self.shared.setup.info).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<D: Dialect> Backend for SessionStore<D> {
    fn info(&self) -> Info {
        self.shared.setup.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.setup.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let has = self.shared.setup.capabilities.check_mode(request.mode, D::SCHEME);
        self.named("acquire", has)?;
        self.named("acquire", self.shared.acquire(request).await)
    }

    /// Nobody waits here: an acquire does, in the server's queue.
    async fn wait(&self, _ticket: &Ticket) -> Result<Wake> {
        self.named("wait", self.shared.check_open())?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.named("wait", self.shared.check_open().map(|()| Wake::Ask))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        // Each session for itself, all of them at once.
        let renewals = due.iter().map(async |renewal| {
            self.shared.check_open()?;
            let (name, holder) = (&renewal.ticket.name, renewal.ticket.holder);
            let Some(hold) = self.shared.find(name, holder) else { return Ok(Renewed::NotHeld) };
            let grant = self.shared.renew(holder, &hold, renewal.lease).await?;
            Ok(grant.map_or(Renewed::NotHeld, Renewed::Held))
        });
        let answers = futures_util::future::join_all(renewals).await;
        answers.into_iter().map(|answer| self.named("renew", answer)).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.named("release", self.shared.release(ticket).await)
    }

    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        self.named("raise", self.shared.check_open())?;
        self.unsupported("raise", "`raise`: all locks share the source of their numbers")
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.named("inspect", self.shared.check_open())?;
        let seen = match self.named("inspect", self.shared.aside(Ask::Look(self.shared.key(name))).await)? {
            Answer::Holders(seen) => seen,
            _ => Vec::new(),
        };
        let view = |seen: dialect::Seen| EntryView {
            token: seen.token,
            mode: seen.mode,
            note: seen.note,
            age: None,
            expires_in: None,
        };
        let mut holders: Vec<_> = seen.into_iter().map(view).collect();
        holders.sort_by_key(|holder| holder.token);
        Ok(Snapshot { holders, ..Snapshot::empty(name.clone()) })
    }

    async fn list(&self, _prefix: &str, _page: &Page) -> Result<Listing> {
        self.named("list", self.shared.check_open())?;
        self.unsupported("list", "`list`: the server knows keys, not names")
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.named("evict", self.shared.check_open())?;
        let whom = Whom::Token(self.shared.key(name), token);
        let evicted = self.named("evict", self.shared.end(whom).await)?;
        if evicted == Release::Released {
            // Not every server tells a client that its session was ended by somebody's order.
            self.shared.held().retain(|_, hold| hold.name != *name || hold.token != token);
        }
        Ok(evicted)
    }

    async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.closed.store(true, Ordering::Release);
        shared.turns.close();
        // The server ends sessions whose connection has gone, and what they hold with them.
        shared.held().clear();
        shared.places.clear();
        shared.spares.clear();
        shared.side.lock().await.take();
        Ok(())
    }
}
