//! The store: its verbs, over one dialect, and what this client's locks are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::{Checked, undeclared};
use onelock_core::toolkit::Mutex;
use onelock_core::{
    Backend, Capabilities, Error, FencingToken, HolderMap, Info, Listing, LockName, Page, Raise, Release,
    Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::time::timeout;

use super::dialect::Dialect;
use super::entry::Entry;
use super::names::{Key, key};
use super::sessions::{Sessions, closed, silent};
use crate::hosts::OPENING;

/// The store.
pub(super) struct SessionStore<D: Dialect> {
    info: Info,
    /// What keeps the names of several users of one server apart.
    space: String,
    pub(super) sessions: Arc<Sessions<D>>,
    pub(super) entries: Mutex<HolderMap<Arc<Entry<D>>>>,
}

impl<D: Dialect> SessionStore<D> {
    /// The store at `address`, once `opening` has given how to ask it and what keeps its names apart. The times are for connecting
    /// and for an answer.
    pub(super) async fn open(
        address: String,
        connections: u16,
        times: (Duration, Duration),
        opening: impl Future<Output = Result<(D, String)>>,
    ) -> Result<Checked<Self>> {
        let info = Info::new(D::SCHEME, format!("{}://{address}", D::SCHEME));
        let opened = async {
            let (dialect, space) = timeout(OPENING, opening).await.map_err(|_| silent())??;
            Ok((space, Sessions::open(dialect, connections, times).await?))
        };
        let (space, sessions) =
            opened.await.map_err(|error: Error| error.during("open").at(&info.address))?;
        Ok(Checked::over(Self { info, space, sessions, entries: Mutex::default() }))
    }

    pub(super) fn find(&self, ticket: &Ticket) -> Option<Arc<Entry<D>>> {
        let entry = self.entries.lock().get(&ticket.holder).cloned();
        entry.filter(|entry| entry.wish.request.name == ticket.name)
    }

    pub(super) fn enter(&self, entry: &Arc<Entry<D>>) -> Result<()> {
        self.entries.lock().insert(entry.wish.request.holder, Arc::clone(entry));
        // Closing empties the entries, but not of what comes later.
        if self.sessions.pool.permits.is_closed() {
            self.forget(entry);
            return Err(closed());
        }
        Ok(())
    }

    /// Forgets an entry whose session is gone.
    pub(super) fn forget(&self, entry: &Arc<Entry<D>>) {
        let (mut entries, holder) = (self.entries.lock(), entry.wish.request.holder);
        if entries.get(&holder).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            entries.remove(&holder);
        }
    }

    pub(super) fn key(&self, name: &LockName) -> Key {
        key(&self.space, name)
    }
}

impl<D: Dialect> fmt::Debug for SessionStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("info", &self.info).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<D: Dialect> Backend for SessionStore<D> {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        D::CAPABILITIES
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.join(request).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.until_held(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renew_all(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.give_back(ticket).await
    }

    /// All locks share the source of their numbers.
    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        undeclared()
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.holders(name).await
    }

    /// The server knows keys, not names.
    async fn list(&self, _prefix: &str, _page: &Page) -> Result<Listing> {
        undeclared()
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.end_holder(name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close().await;
        // The server ends sessions whose connection has gone, and what they hold with them.
        self.entries.lock().clear();
        Ok(())
    }
}
