//! What this client holds or waits for: each lock has a session, and what that was asked last.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, ready};
use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, FencingToken, Grant, Result};
use tokio::time::timeout;

use super::dialect::{Ask, Dialect, Id, Wish};
use super::sessions::{Permitted, Sessions, silent};

/// A request under way, with its session. Each caller that awaits it drives it; one that stops does not end it.
type Asked<D> = Shared<BoxFuture<'static, Result<Arc<Answered<D>>>>>;

/// A request that was answered.
pub(super) struct Answered<D: Dialect> {
    /// Whether the session did what it was asked.
    done: bool,
    /// The session, until it is asked again or given back.
    session: Mutex<Option<Permitted<D>>>,
}

impl<D: Dialect> Answered<D> {
    fn new(done: bool, session: Permitted<D>) -> Arc<Self> {
        Arc::new(Self { done, session: Mutex::new(Some(session)) })
    }

    fn take(&self) -> Option<Permitted<D>> {
        self.session.lock().take()
    }
}

/// A lock that a session of this client holds or waits for, or may while its answer is lost.
pub(super) struct Entry<D: Dialect> {
    sessions: Arc<Sessions<D>>,
    pub(super) wish: Arc<Wish>,
    pub(super) id: Id,
    /// Its number, from when this client knows that it holds.
    token: Arc<OnceLock<FencingToken>>,
    /// The last request. After an error the connection is closed, and the lock is gone as soon as the server knows.
    asked: Mutex<Asked<D>>,
}

impl<D: Dialect> Entry<D> {
    pub(super) fn new(sessions: &Arc<Sessions<D>>, wish: &Arc<Wish>, session: Permitted<D>) -> Arc<Self> {
        Arc::new(Self {
            sessions: Arc::clone(sessions),
            wish: Arc::clone(wish),
            id: session.0.id,
            token: Arc::default(),
            asked: Mutex::new(ready(Ok(Answered::new(false, session))).boxed().shared()),
        })
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.token.get().copied()
    }

    pub(super) fn grant(&self, lease: Duration) -> Result<Grant> {
        self.token().map(|token| Grant::new(token, lease)).ok_or_else(without)
    }

    /// What the session was asked last.
    pub(super) fn asked(&self) -> Asked<D> {
        self.asked.lock().clone()
    }

    /// Whether its connection is closed, or its last request has failed.
    pub(super) fn is_closed(&self) -> bool {
        self.asked().now_or_never().is_some_and(|answer| answer.is_err())
    }

    /// Sends the session a request, once it has answered the one before.
    pub(super) fn send(&self, ask: Ask) -> Asked<D> {
        let sessions = Arc::clone(&self.sessions);
        let wish = Arc::clone(&self.wish);
        let token = Arc::clone(&self.token);
        let mut asked = self.asked.lock();
        let before = asked.clone();
        let request = async move {
            let mut session = before.await?.take().ok_or_else(gone)?;
            let number = session.0.ask(&sessions.pool.server.dialect, &wish, ask).await?;
            // The answer to a renewal has a number, too, and grants nothing.
            if let (Ask::Take | Ask::Queue, Some(number)) = (ask, number) {
                let _ = token.set(FencingToken::new(number)?);
            }
            Ok(Answered::new(number.is_some(), session))
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
        let answer = timeout(self.sessions.limit, answer).await.unwrap_or_else(|_| Err(silent()));
        answer.map(|answered| answered.done)
    }

    /// Gives back the session, which holds nothing any more.
    pub(super) fn end(&self) {
        let answered = self.asked().now_or_never().and_then(Result::ok);
        if let Some((session, _permit)) = answered.and_then(|answered| answered.take()) {
            self.sessions.pool.give(session);
        }
    }

    /// Closes the connection. Where another call awaits the last request it stays until that is answered or the call is dropped.
    pub(super) fn close(&self) {
        *self.asked.lock() = ready(Err(gone())).boxed().shared();
    }
}

pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the session that held the lock, or waited for it, is gone")
}

/// A waiter's session was answered, and did not get the lock.
pub(super) fn without() -> Error {
    let text = "the request that waited for the lock has ended without it, as by `KILL QUERY`";
    Error::new(ErrorKind::Unavailable, text)
}

/// What a waiter is answered whose request has failed: joining again does not help where its token epoch is too small.
pub(super) fn gone_by(cause: Error) -> Error {
    if cause.kind() == ErrorKind::InvalidConfig { cause } else { gone().caused_by(cause) }
}
