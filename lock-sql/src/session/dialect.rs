//! What a kind of server knows: how to reach it, and how its sessions are asked. One request each.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Capabilities, EntryView, FencingToken, Request, Result};

use super::names::Key;
use crate::pool::Fault;

/// How to talk to one kind of server. After an error a connection is not used again; [`onelock_core::ErrorKind::Lost`] is the
/// server's own word that it had ended the session before.
#[async_trait]
pub(super) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// A connection to it, and what is known of the session at its other end.
    type Conn: Send + 'static;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// What its locks can do.
    const CAPABILITIES: Capabilities;

    /// What an error of the server means.
    const FAULT: fn(&sqlx::Error) -> Fault;

    /// A session of its own, set up and checked, and which it is; it may be idle for ever.
    async fn connect(&self) -> Result<(Self::Conn, Id)>;

    /// Asks the session of a lock; `idle` is how long it may be idle from now on, where that changes.
    async fn ask(
        &self,
        conn: &mut Self::Conn,
        wish: &Wish,
        ask: Ask,
        idle: Option<Duration>,
    ) -> Result<Answer>;

    /// Which of these sessions wait for their lock.
    async fn waiting(&self, conn: &mut Self::Conn, some: Vec<(Id, Key)>) -> Result<Vec<Id>>;

    /// The entries that hold.
    async fn holders(&self, conn: &mut Self::Conn, key: Key) -> Result<Vec<EntryView>>;

    /// Tells such a session to end, and with it what it holds or waits for. Whether it was there: it may be for a moment yet.
    async fn end(&self, conn: &mut Self::Conn, whose: Whose) -> Result<bool>;
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
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// Take the lock, and a number while holding it, unless it is busy.
    Take,
    /// The same, in the server's queue.
    Queue,
    /// Still here, for this lease.
    Beat(Duration),
    /// Give the lock back.
    Give,
}

/// Which session has answered; and to `Take` and `Queue` the number under which it holds now, to the others any number, if it did what it
/// was asked.
pub(super) type Answer = (i64, Option<i64>);

/// A lock that somebody wants.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) key: Key,
    pub(super) request: Request,
}
