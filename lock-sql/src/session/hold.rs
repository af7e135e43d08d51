//! A held lock and the session that holds it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, FencingToken, LockName, Mode, Result};

use super::asked::{self, Asked};
use super::dialect::{Answer, Ask, Dialect, Id, Session};
use super::names::Key;
use super::turns::Permit;

/// A lock that a session of this client holds.
pub(super) struct Hold<C> {
    pub(super) name: LockName,
    pub(super) key: Key,
    pub(super) mode: Mode,
    pub(super) token: FencingToken,
    pub(super) id: Id,
    /// One question after the other.
    pub(super) line: tokio::sync::Mutex<Line<C>>,
    /// Freed when the last who uses the session has let go of it, or handed on with the session.
    pub(super) permit: Mutex<Option<Permit<C>>>,
}

/// The way to the session that holds.
pub(super) enum Line<C> {
    Free(Session<C>),
    /// Asked, and not answered in time: the answer may come yet.
    Asked(Asked<C>, Question),
    /// The connection is gone, and with it the lock.
    Gone,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Beat,
    Give,
}

impl<C: Send + 'static> Line<C> {
    /// The session, once it has answered what it was asked before. What came of that, when that was a `Give`.
    async fn settled(&mut self, limit: Duration) -> Result<Option<Answer>> {
        let Self::Asked(asked, question) = self else { return Ok(None) };
        let question = *question;
        let Some((session, answer)) = asked.within(limit).await else { return Err(silent()) };
        match answer {
            Ok(answer) => {
                // What a swap has taken nobody waits for any more: the lock goes with its session.
                let swapped = matches!(answer, Answer::Swapped(_));
                *self = if swapped { Self::Gone } else { Self::Free(session) };
                Ok((question == Question::Give).then_some(answer))
            }
            Err(error) => {
                *self = Self::Gone;
                Err(error)
            }
        }
    }

    /// Asks. After [`ErrorKind::Timeout`] the question is still under way; after any other error the session is gone.
    async fn ask<D: Dialect<Conn = C>>(
        &mut self,
        dialect: &Arc<D>,
        question: Question,
        ask: impl FnOnce(&Session<C>) -> Ask,
        limit: Duration,
    ) -> Result<Answer> {
        if let Some(given) = self.settled(limit).await? {
            // It was given back: there is nothing more to ask.
            return match question {
                Question::Give => Ok(given),
                Question::Beat => Err(gone()),
            };
        }
        let Self::Free(session) = std::mem::replace(self, Self::Gone) else { return Err(gone()) };
        let ask = ask(&session);
        *self = Self::Asked(asked::ask(dialect, session, ask), question);
        let Self::Asked(asked, _) = self else { return Err(gone()) };
        let Some((session, answer)) = asked.within(limit).await else { return Err(silent()) };
        *self = if answer.is_ok() { Self::Free(session) } else { Self::Gone };
        answer
    }

    /// Tells the session that its client lives: its time of idleness starts again, after this was called.
    pub(super) async fn beat<D: Dialect<Conn = C>>(
        &mut self,
        dialect: &Arc<D>,
        lease: Duration,
        exactly: bool,
        limit: Duration,
    ) -> Result<Answer> {
        // A renewal never shortens what an earlier one gave.
        let idle = |session: &Session<C>| {
            let change = if exactly { session.idle != lease } else { session.idle < lease };
            Ask::Beat { idle: change.then_some(lease) }
        };
        self.ask(dialect, Question::Beat, idle, limit).await
    }

    /// Gives the lock back: asks for that, or for a swap.
    pub(super) async fn give<D: Dialect<Conn = C>>(
        &mut self,
        dialect: &Arc<D>,
        ask: Ask,
        limit: Duration,
    ) -> Result<Answer> {
        self.ask(dialect, Question::Give, |_| ask, limit).await
    }

    /// How long the server lets the session be idle, if it can be asked now.
    pub(super) fn idle(&self) -> Option<Duration> {
        match self {
            Self::Free(session) => Some(session.idle),
            _ => None,
        }
    }

    /// Whether a question was not answered in time.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self, Self::Asked(..))
    }

    /// The session, to be used for something else.
    pub(super) fn take(&mut self) -> Option<Session<C>> {
        match std::mem::replace(self, Self::Gone) {
            Self::Free(session) => Some(session),
            _ => None,
        }
    }
}

pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Timeout, "the server did not answer in time")
}

pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the session that held the lock is gone")
}
