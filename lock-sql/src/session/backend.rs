//! The store: its verbs, over one dialect, and what this client's locks are.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::store::{Checked, undeclared};
use onelock_core::toolkit::Mutex;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, HolderMap, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::time::timeout;

use super::dialect::{Answer, Ask, Dialect, Id, Wish};
use super::names::Key;
use super::sessions::{Asked, Session, Sessions, silent};
use crate::hosts::OPENING;

/// The store.
pub(super) struct SessionStore<D: Dialect> {
    info: Info,
    /// What keeps the names of several users of one server apart.
    space: String,
    pub(super) sessions: Arc<Sessions<D>>,
    pub(super) entries: Mutex<HolderMap<Arc<Entry<D::Conn>>>>,
}

/// A lock that a session of this client holds or waits for, or may while its answer is lost.
pub(super) struct Entry<C> {
    pub(super) wish: Arc<Wish>,
    pub(super) id: Id,
    /// Its number, from when this client knows that it holds.
    pub(super) token: OnceLock<FencingToken>,
    /// One request after the other.
    pub(super) state: tokio::sync::Mutex<State<C>>,
}

/// The session of an entry.
pub(super) enum State<C> {
    Free(Session<C>),
    /// Asked, and not answered yet.
    Asked(Asked<C>),
    /// The connection is gone, and with it the lock as soon as the server knows.
    Gone,
}

impl<C> Entry<C> {
    pub(super) fn new(wish: &Arc<Wish>, id: Id, state: State<C>) -> Arc<Self> {
        let (wish, state) = (Arc::clone(wish), tokio::sync::Mutex::new(state));
        Arc::new(Self { wish, id, token: OnceLock::new(), state })
    }

    pub(super) fn is_of(&self, name: &LockName) -> bool {
        self.wish.request.name == *name
    }

    /// Waits for what the session was asked before. Dropped half way, the request goes on.
    pub(super) async fn settle(&self, state: &mut State<C>) -> Result<Option<Answer>> {
        let State::Asked(asked) = state else { return Ok(None) };
        let (session, answer) = asked.await;
        *state = State::Gone;
        let answer = answer?;
        if let Answer::Taken(Some(token)) = answer {
            let _ = self.token.set(token);
        }
        *state = State::Free(session);
        Ok(Some(answer))
    }

    /// Sends the session a request, once it has answered what it was asked before. An answer that is late may come yet.
    pub(super) async fn send<D: Dialect<Conn = C>>(
        &self,
        sessions: &Sessions<D>,
        ask: Ask,
    ) -> Result<tokio::sync::MutexGuard<'_, State<C>>> {
        let mut state = self.state.lock().await;
        self.settle(&mut state).await?;
        let State::Free(session) = std::mem::replace(&mut *state, State::Gone) else {
            return Err(gone());
        };
        *state = State::Asked(sessions.ask(session, ask));
        Ok(state)
    }

    /// Asks the session.
    pub(super) async fn ask<D: Dialect<Conn = C>>(&self, sessions: &Sessions<D>, ask: Ask) -> Result<Answer> {
        let asked = async {
            let mut state = self.send(sessions, ask).await?;
            self.settle(&mut state).await?.ok_or_else(gone)
        };
        timeout(sessions.limit, asked).await.unwrap_or_else(|_| Err(silent()))
    }

    /// Gives back the session, which holds nothing any more.
    pub(super) async fn end<D: Dialect<Conn = C>>(&self, sessions: &Sessions<D>) {
        if let State::Free(session) = std::mem::replace(&mut *self.state.lock().await, State::Gone) {
            sessions.give(session);
        }
    }
}

/// What a waiter is answered whose request has failed: joining again does not help where its token epoch is too small.
pub(super) fn gone_by(cause: Error) -> Error {
    if cause.kind() == ErrorKind::InvalidConfig { cause } else { gone().caused_by(cause) }
}

pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the session that held the lock, or waited for it, is gone")
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
        let opened = opened.await.map_err(|error: Error| error.during("open").at(&info.address));
        let (space, sessions) = opened?;
        Ok(Checked::over(Self { info, space, sessions, entries: Mutex::default() }))
    }

    pub(super) fn find(&self, ticket: &Ticket) -> Option<Arc<Entry<D::Conn>>> {
        self.entries.lock().get(&ticket.holder).filter(|entry| entry.is_of(&ticket.name)).cloned()
    }

    /// Forgets an entry whose session is gone.
    pub(super) fn forget(&self, entry: &Arc<Entry<D::Conn>>) {
        let (mut entries, holder) = (self.entries.lock(), entry.wish.request.holder);
        if entries.get(&holder).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            entries.remove(&holder);
        }
    }

    pub(super) fn key(&self, name: &LockName) -> Key {
        Key::new(&self.space, name)
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
