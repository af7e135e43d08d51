//! What a server's dialect answers for the shared part: one request each.

use std::fmt;
use std::time::Duration;

use onelock_core::{Error, FencingToken, Mode, Note, Result};

use super::asked::Timer;
use super::names::{Key, Tag};

/// How to talk to one kind of server.
pub(super) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// A connection to it.
    type Conn: Send + 'static;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// A session of its own, set up and checked; it ends by itself when it is idle for longer than it says.
    fn connect(&self) -> impl Future<Output = Result<Session<Self::Conn>>> + Send;

    /// Whether the server refused a connection because it takes no more of them.
    fn is_full(error: &Error) -> bool;

    /// Whether it knows how to [`Swap`](Ask::Swap).
    fn swaps(&self) -> bool;

    /// Asks, in one round trip. After an error the connection is not used again; [`onelock_core::ErrorKind::Lost`] is the server's
    /// own word that it had ended the session before.
    fn ask(&self, conn: &mut Self::Conn, ask: &Ask) -> impl Future<Output = Result<Answer>> + Send;
}

/// One session of the server.
#[derive(Debug)]
pub(super) struct Session<C> {
    pub(super) conn: C,
    pub(super) id: Id,
    /// How long the server lets it be idle; zero is for ever.
    pub(super) idle: Duration,
    pub(super) timer: Timer,
}

/// Which session of which life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) process: i64,
    pub(super) born: i64,
}

/// What a session is asked.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "one dialect has modes and notes"))]
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
    Give { key: Key, mode: Mode },
    /// Give the lock of this key back; if it was held, take another one, unless it is busy. Both are exclusive.
    Swap { key: Key, wish: Wish },
    /// Whether that session waits for a lock.
    Waits(Id),
    /// Who holds.
    Look(Key),
    /// End a session, and with it what it holds.
    End(Whom),
}

/// A lock that somebody wants.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "one dialect has modes and notes"))]
pub(super) struct Wish {
    pub(super) key: Key,
    pub(super) mode: Mode,
    /// Whose it will be, for `End`.
    pub(super) tag: Tag,
    pub(super) note: Note,
}

/// Which session to end.
#[derive(Clone, Debug)]
pub(super) enum Whom {
    /// This one.
    Session(Id),
    /// The holder of the lock, if it is this one.
    Tag(Key, Tag),
    /// The holder of the lock, if it has this number.
    Token(Key, FencingToken),
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
    /// The lock was taken under this number.
    Taken(FencingToken),
    /// One was given back, and the other taken under this number, or busy.
    Swapped(Option<FencingToken>),
    /// It was done; or: it is so.
    Yes,
    /// There was nothing to do; the lock is busy; it is not so.
    No,
    /// Who holds.
    Holders(Vec<Seen>),
}

/// A holder as the server shows it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) token: FencingToken,
    pub(super) mode: Mode,
    pub(super) note: String,
}
