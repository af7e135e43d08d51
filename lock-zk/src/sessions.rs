//! The sessions of a client: those of each class of leases, and one for what needs no lease.
//!
//! A class has one session until the paths of its nodes fill it ([`Session::take`]); then it gets another.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::toolkit::{Flights, Mutex};
use onelock_core::{Error, ErrorKind, Result};

use crate::contact::timeout_for;
use crate::session::{Room, Servers, Session};

/// What the desk asks for: more than any server gives, so that the answer tells the most it gives.
const MOST: Duration = Duration::from_secs(20 * 24 * 3600);

/// How often a session is opened for one node: others that come at the same time may fill it first.
const OPENINGS: usize = 100;

/// All sessions of a client.
pub(crate) struct Sessions {
    pub(crate) servers: Arc<Servers>,
    /// Nothing once they are closed.
    open: Mutex<Option<Vec<Arc<Session>>>>,
    /// Those that are being opened, by class: a call that comes meanwhile waits.
    opening: Flights<Duration, Result<()>>,
}

impl Sessions {
    pub(crate) fn new(servers: Arc<Servers>) -> Arc<Self> {
        Arc::new(Self { servers, open: Mutex::new(Some(Vec::new())), opening: Flights::default() })
    }

    /// A session whose nodes live for `need` at least after every renewal, with room for a path of so many bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`] when the server gives no session that long; what connecting says.
    pub(crate) async fn with_room(self: &Arc<Self>, need: Duration, bytes: u32) -> Result<Room> {
        let room = self.of_class(timeout_for(need, self.servers.config.tick), bytes).await?;
        carries(room.0.capacity(), need)?;
        Ok(room)
    }

    /// The session for what needs no lease. It has no nodes.
    pub(crate) async fn desk(self: &Arc<Self>) -> Result<Arc<Session>> {
        Ok(self.of_class(MOST, 0).await?.0)
    }

    async fn of_class(self: &Arc<Self>, ask: Duration, bytes: u32) -> Result<Room> {
        for _ in 0..OPENINGS {
            if let Some(room) = self.find(ask, bytes)? {
                return Ok(room);
            }
            let opening = self.opening.of(ask);
            // On the runtime that the client was made in, where the session's tasks live, not on the caller's.
            let opened = opening.join(&self.servers.runtime, || {
                let sessions = Arc::clone(self);
                async move {
                    // Another one may have ended since the caller looked.
                    if sessions.find(ask, bytes)?.is_some() {
                        return Ok(());
                    }
                    let session = Session::open(&sessions.servers, ask).await?;
                    if let Some(open) = &mut *sessions.open.lock() {
                        open.retain(|session| !session.is_over());
                        open.push(session);
                    }
                    Ok(())
                }
            });
            let gone = || Err(Error::new(ErrorKind::Closed, "the runtime this client was made in is gone"));
            opened.await.unwrap_or_else(gone)?;
        }
        Err(Error::new(ErrorKind::Unavailable, "new sessions ended or were filled by others again and again"))
    }

    /// The first session of a class that has room, which is taken.
    fn find(&self, ask: Duration, bytes: u32) -> Result<Option<Room>> {
        let open = self.open.lock();
        let closed = || Error::new(ErrorKind::Closed, "the ZooKeeper client has been closed");
        let of_class = open.as_ref().ok_or_else(closed)?.iter().filter(|session| session.ask == ask);
        Ok(of_class.filter(|session| !session.is_over()).find_map(|session| session.take(bytes)))
    }

    /// Lets sessions go that have no entry: the server takes so many connections of an address. Returns those that have some.
    pub(crate) fn sweep(&self) -> Vec<Arc<Session>> {
        let mut open = self.open.lock();
        let Some(open) = &mut *open else { return Vec::new() };
        open.retain(|session| session.ask == MOST || Arc::strong_count(session) > 1);
        open.iter().filter(|session| session.ask != MOST).cloned().collect()
    }

    /// Ends all sessions but these, which end with their last entries, and opens no more.
    pub(crate) async fn close(&self, but: &[Arc<Session>]) {
        let mut open = self.open.lock().take().unwrap_or_default();
        open.retain(|session| !but.iter().any(|kept| Arc::ptr_eq(kept, session)));
        join_all(open.iter().map(|session| session.close())).await;
    }
}

/// Refuses a lease, lock-delay included, that a session of this capacity does not carry.
pub(crate) fn carries(longest: Duration, need: Duration) -> Result<()> {
    if need <= longest {
        return Ok(());
    }
    let text = format!(
        "a lease with its lock-delay of {need:?} is longer than {longest:?}, the most that sessions of this server carry (its \
         maxSessionTimeout less the margins)",
    );
    Err(Error::new(ErrorKind::InvalidLease, text))
}
