//! What a kind of server knows: how to reach it, and how its sessions are asked. One request each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Capabilities, EntryView, FencingToken, Request, Result};

use super::names::Key;
use crate::pool::Fault;

/// How to talk to one kind of server. After an error a connection is not used again; [`onelock_core::ErrorKind::Lost`] is the
/// server's own word that it had ended the session before.
pub(super) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// A connection to it, and the session at its other end.
    type Conn: Send + 'static;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// What its locks can do.
    const CAPABILITIES: Capabilities;

    /// A session of its own, set up and checked, and which it is; it may be idle for ever.
    fn connect(&self) -> impl Future<Output = Result<(Self::Conn, Id)>> + Send;

    /// What an error of the server means.
    fn fault(error: &sqlx::Error) -> Fault;

    /// Asks the session of a lock; `idle` is how long it may be idle from now on, where that changes.
    fn ask(
        &self,
        conn: &mut Self::Conn,
        ask: &Ask,
        idle: Option<Duration>,
    ) -> impl Future<Output = Result<Answer>> + Send;

    /// Which of these sessions wait for their lock.
    fn waiting(
        &self,
        conn: &mut Self::Conn,
        some: Vec<(Id, Key)>,
    ) -> impl Future<Output = Result<Vec<Id>>> + Send;

    /// Who holds.
    fn holders(&self, conn: &mut Self::Conn, key: Key)
    -> impl Future<Output = Result<Vec<EntryView>>> + Send;

    /// Tells such a session to end, and with it what it holds or waits for. Whether it was there: it may be for a moment yet.
    fn end(&self, conn: &mut Self::Conn, whose: Whose) -> impl Future<Output = Result<bool>> + Send;
}

/// Which session of which life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) process: i64,
    pub(super) born: i64,
}

/// Which session is to end.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// This one.
    Session(Id),
    /// The one that holds the lock with this number.
    Numbered(Key, FencingToken),
    /// The one that holds the lock for this holder.
    Of(Key, String),
}

/// What the session of a lock is asked.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Take the lock, and a number while holding it; whether to stand in the server's queue.
    Take(Arc<Wish>, bool),
    /// Still here, for this lease.
    Beat(Duration),
    /// Give the lock back.
    Give(Arc<Wish>),
}

/// A lock that somebody wants.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) key: Key,
    pub(super) request: Request,
}

impl Ask {
    /// How long a session that may be idle for `now` may be so from this request on, where that changes. A renewal never
    /// shortens what an earlier one gave.
    pub(super) fn idle(&self, now: Duration) -> Option<Duration> {
        match self {
            Self::Take(wish, _) => Some(wish.request.lease).filter(|lease| *lease != now),
            Self::Beat(lease) => (*lease > now).then_some(*lease),
            Self::Give(_) => None,
        }
    }
}

/// What comes of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The lock was taken under this number; `None` where it is busy.
    Taken(Option<FencingToken>),
    /// Whether there was something to do.
    Done(bool),
}
