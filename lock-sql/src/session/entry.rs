//! What this client holds or waits for: the session of each lock, and what that was asked last.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, FencingToken, Grant, Result};
use tokio::time::timeout;

use super::dialect::{Ask, Dialect, Id, Wish};
use super::sessions::{Permitted, Sessions, silent};

/// A request: whether it found something to do. Whoever polls brings it on, and nobody has to stay.
type Asked = Shared<BoxFuture<'static, Result<bool>>>;

/// A lock that a session of this client holds or waits for, or may while its answer is lost.
pub(super) struct Entry<D: Dialect> {
    sessions: Arc<Sessions<D>>,
    pub(super) wish: Arc<Wish>,
    pub(super) id: Id,
    /// Its number, from when this client knows that it holds.
    token: Arc<OnceLock<FencingToken>>,
    /// The session while nothing is asked. It is gone after an error, and with it the lock as soon as the server knows.
    session: Arc<Mutex<Option<Permitted<D>>>>,
    /// The last request, which keeps the session until it is answered.
    asked: Mutex<Asked>,
}

impl<D: Dialect> Entry<D> {
    pub(super) fn new(sessions: &Arc<Sessions<D>>, wish: &Arc<Wish>, session: Permitted<D>) -> Arc<Self> {
        Arc::new(Self {
            sessions: Arc::clone(sessions),
            wish: Arc::clone(wish),
            id: session.0.id,
            token: Arc::default(),
            session: Arc::new(Mutex::new(Some(session))),
            asked: Mutex::new(async { Ok(false) }.boxed().shared()),
        })
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.token.get().copied()
    }

    pub(super) fn grant(&self, lease: Duration) -> Result<Grant> {
        self.token().map(|token| Grant::new(token, lease)).ok_or_else(gone)
    }

    /// What the session was asked last.
    pub(super) fn asked(&self) -> Asked {
        self.asked.lock().clone()
    }

    /// Sends the session a request, once it has answered the one before: one after the other.
    pub(super) fn send(&self, ask: Ask) -> Asked {
        let (sessions, wish) = (Arc::clone(&self.sessions), Arc::clone(&self.wish));
        let (token, free) = (Arc::clone(&self.token), Arc::clone(&self.session));
        let mut asked = self.asked.lock();
        let before = asked.clone();
        let request = async move {
            let _ = before.await;
            let mut session = free.lock().take().ok_or_else(gone)?;
            let number = session.0.ask(&sessions.pool.server.dialect, &wish, ask).await?;
            if let Some(number) = number {
                let _ = token.set(FencingToken::new(number)?);
            }
            *free.lock() = Some(session);
            Ok(number.is_some())
        };
        *asked = request.boxed().shared();
        asked.clone()
    }

    /// Asks the session, which may have to answer first what it was asked before. An answer that is late may come yet.
    pub(super) async fn ask(&self, ask: Ask) -> Result<bool> {
        let answer = async {
            self.asked().await?;
            self.send(ask).await
        };
        timeout(self.sessions.limit, answer).await.unwrap_or_else(|_| Err(silent()))
    }

    /// Gives back the session, which holds nothing any more.
    pub(super) fn end(&self) {
        if let Some((session, _permit)) = self.session.lock().take() {
            self.sessions.pool.give(session);
        }
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        *self.asked.lock() = async { Err(gone()) }.boxed().shared();
        self.session.lock().take();
    }
}

pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the session that held the lock, or waited for it, is gone")
}

/// What a waiter is answered whose request has failed: joining again does not help where its token epoch is too small.
pub(super) fn gone_by(cause: Error) -> Error {
    if cause.kind() == ErrorKind::InvalidConfig { cause } else { gone().caused_by(cause) }
}
