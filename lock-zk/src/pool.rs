//! The sessions of a client: those of each class of leases, and one for what needs no lease.
//!
//! A class has one session until the paths of its nodes fill it ([`Session::take`]); then it gets another.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::flight::SingleFlight;
use onelock_core::{Clock, Error, ErrorKind, Result};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::config::ZkConfig;
use crate::session::{Session, capacity, timeout_for};

/// What the desk asks for: more than any server gives, so that the answer tells the most it gives.
const MOST: Duration = Duration::from_secs(20 * 24 * 3600);

/// How long a session without entries is kept for the next one.
const IDLE: Duration = Duration::from_secs(120);

/// How often a session is opened for one node: those who come at the same time may fill it first.
const OPENINGS: usize = 100;

/// Where to connect to, and what every session needs.
pub(crate) struct Target {
    pub(crate) config: ZkConfig,
    /// For messages.
    pub(crate) address: String,
    /// The path above all names; empty for the root.
    pub(crate) base: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
    pub(crate) tls: Option<zk::TlsOptions>,
    slots: Mutex<HashMap<Duration, Arc<Slot>>>,
}

/// One class: whoever comes while a session is being opened waits for it.
#[derive(Default)]
struct Slot {
    sessions: Mutex<Vec<Arc<Session>>>,
    opening: SingleFlight<Result<()>>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room in the first session that has it.
    fn room(&self, bytes: usize) -> Option<Room> {
        let sessions = self.lock();
        let session = sessions.iter().find(|session| !session.is_over() && session.take(bytes))?;
        Some(Room { session: Arc::clone(session), bytes })
    }
}

/// Room for one node in a session. Whoever may yet have to delete the node keeps it.
pub(crate) struct Room {
    session: Arc<Session>,
    bytes: usize,
}

impl Room {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The node cannot be deleted: it takes its room until the session ends.
    pub(crate) fn stays(&self) {
        self.session.add(self.bytes);
    }
}

impl Deref for Room {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.session.put_back(self.bytes);
    }
}

impl Target {
    pub(crate) fn new(
        config: ZkConfig,
        base: String,
        clock: Arc<dyn Clock>,
        runtime: Handle,
    ) -> Result<Self> {
        let tls = config.tls_options()?;
        let slots = Mutex::default();
        Ok(Self { address: config.address(), config, base, clock, runtime, tls, slots })
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The access list of everything this client creates.
    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        if self.config.password.is_some() { zk::Acls::creator_all() } else { zk::Acls::anyone_all() }
    }

    pub(crate) async fn connect(&self, ask: Duration) -> Result<zk::Client, zk::Error> {
        let mut connector = zk::Client::connector().with_session_timeout(ask);
        // A connection that says nothing for so long is given up. The driver's own limit, two fifths of the session,
        // is far too long for long sessions.
        if self.config.request_timeout <= ask * 2 / 5 {
            connector = connector.with_connection_timeout(self.config.request_timeout);
        }
        if let (Some(user), Some(password)) = (&self.config.username, &self.config.password) {
            connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
        }
        let cluster = self.config.cluster();
        match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()).secure_connect(&cluster).await,
            None => connector.connect(&cluster).await,
        }
    }

    /// Room for a node with a path of so many bytes, in a session whose nodes live for `need` at least after every renewal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`] when the server gives no session that long; what connecting says.
    pub(crate) async fn room(self: &Arc<Self>, need: Duration, bytes: usize) -> Result<Arc<Room>> {
        let room = self.of_class(timeout_for(need, self.config.tick), bytes).await?;
        if room.capacity() < need {
            let text = format!(
                "a lease with its lock-delay of {} is longer than the {} that sessions of this server carry",
                humantime::format_duration(need),
                humantime::format_duration(room.capacity()),
            );
            return Err(Error::new(ErrorKind::InvalidLease, text));
        }
        Ok(Arc::new(room))
    }

    /// The session for what needs no lease. It has no nodes.
    pub(crate) async fn desk(self: &Arc<Self>) -> Result<Arc<Session>> {
        Ok(Arc::clone(self.of_class(MOST, 0).await?.session()))
    }

    async fn of_class(self: &Arc<Self>, ask: Duration, bytes: usize) -> Result<Room> {
        let slot = Arc::clone(self.slots().entry(ask).or_default());
        for _ in 0..OPENINGS {
            if let Some(room) = slot.room(bytes) {
                return Ok(room);
            }
            // On the runtime that the client was made in, where the session's tasks live, whoever asks.
            let opened = slot.opening.join(&self.runtime, || {
                let (target, slot) = (Arc::clone(self), Arc::clone(&slot));
                async move {
                    if slot.room(bytes).is_some() {
                        return Ok(());
                    }
                    let session = Session::open(&target, ask, ask != MOST).await?;
                    let mut sessions = slot.lock();
                    sessions.retain(|session| !session.is_over());
                    sessions.push(session);
                    Ok(())
                }
            });
            let gone = || Err(Error::new(ErrorKind::Closed, "the runtime this client was made in is gone"));
            opened.await.unwrap_or_else(gone)?;
        }
        Err(Error::new(ErrorKind::Unavailable, "new sessions ended or were filled by others again and again"))
    }

    /// Lets a session go that nobody has used for long, given how long it is idle already; whether it is idle now.
    pub(crate) fn forget_idle(&self, session: &Arc<Session>, idle: Duration) -> bool {
        // One for the pool and one for the caller.
        if Arc::strong_count(session) > 2 {
            return false;
        }
        if idle >= IDLE {
            self.slots().retain(|ask, slot| {
                let mut sessions = slot.lock();
                sessions.retain(|other| *ask == MOST || !Arc::ptr_eq(session, other));
                // A class whose first session is being opened stays: somebody waits for it.
                !sessions.is_empty() || Arc::strong_count(slot) > 1
            });
        }
        true
    }

    /// Ends all sessions.
    pub(crate) async fn close(&self) {
        let sessions: Vec<_> =
            self.slots().drain().flat_map(|(_, slot)| std::mem::take(&mut *slot.lock())).collect();
        futures_util::future::join_all(sessions.iter().map(|session| session.close())).await;
    }

    /// The longest lease on sessions like this one.
    pub(crate) fn longest(&self, desk: &Session) -> Duration {
        capacity(desk.timeout(), self.config.tick)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}
