//! What a kind of server knows: how to reach it, and how its sessions are asked. One request each.

use std::fmt;
use std::time::Duration;

use onelock_core::{EntryView, Error, FencingToken, Mode, Note, Result, TokenEpoch};

use super::names::{Key, Tag};

/// How to talk to one kind of server.
pub(super) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// A connection to it, and the session at its other end.
    type Conn: Send + 'static;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// A session of its own, set up and checked; it may be idle for ever.
    fn connect(&self) -> impl Future<Output = Result<Self::Conn>> + Send;

    /// Which session it is.
    fn id(conn: &Self::Conn) -> Id;

    /// Whether the server refused a connection because it takes no more of them.
    fn is_full(error: &Error) -> bool;

    /// Asks. After an error the connection is not used again; [`onelock_core::ErrorKind::Lost`] is the server's own word that
    /// it had ended the session before.
    fn ask(&self, conn: &mut Self::Conn, ask: &Ask) -> impl Future<Output = Result<Answer>> + Send;
}

/// Which session of which life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) process: i64,
    pub(super) born: i64,
}

/// What a session is asked.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Take the lock, and a number while holding it.
    Take {
        wish: Wish,
        /// Whether to stand in the server's queue.
        wait: bool,
        /// How long the session may be idle from now on, when that changes.
        idle: Option<Duration>,
    },
    /// Still here.
    Beat { idle: Option<Duration> },
    /// Give the lock back.
    Give {
        key: Key,
        #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "`GET_LOCK` has one mode"))]
        mode: Mode,
    },
    /// Which of these sessions wait for a lock.
    Waiting(Vec<i64>),
    /// Who holds.
    Holders(Key),
    /// End this session, and with it what it holds or waits for.
    End(Id),
    /// End the session that holds the lock with this number.
    Evict(Key, FencingToken),
    /// The same by whose it is.
    Disown(Key, Tag),
}

/// A lock that somebody wants.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "one dialect has modes and notes"))]
pub(super) struct Wish {
    pub(super) key: Key,
    pub(super) mode: Mode,
    /// Whose it will be, as others see it.
    pub(super) tag: Tag,
    pub(super) note: Note,
    /// That of the number to be drawn.
    pub(super) epoch: TokenEpoch,
}

impl Ask {
    /// What the session's time of idleness is after it.
    pub(super) fn idle(&self) -> Option<Duration> {
        match self {
            Self::Take { idle, .. } | Self::Beat { idle } => *idle,
            _ => None,
        }
    }
}

/// What comes of it.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The lock was taken under this number; `None` where it is busy.
    Taken(Option<FencingToken>),
    /// Whether there was something to do.
    Done(bool),
    /// Those that wait.
    Waiting(Vec<i64>),
    /// Who holds.
    Holders(Vec<EntryView>),
}
