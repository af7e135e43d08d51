//! The sessions of a client: those of each class of leases, and one for what needs no lease.
//!
//! A class has one session until the paths of its nodes fill it ([`Session::take`]); then it gets another.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onelock_core::flight::SingleFlight;
use onelock_core::{Error, ErrorKind, Result};

use crate::contact::timeout_for;
use crate::session::{Servers, Session};

/// What the desk asks for: more than any server gives, so that the answer tells the most it gives.
const MOST: Duration = Duration::from_secs(20 * 24 * 3600);

/// How often sessions without entries are closed.
const IDLE: Duration = Duration::from_secs(120);

/// How often a session is opened for one node: those who come at the same time may fill it first.
const OPENINGS: usize = 100;

/// All sessions of a client.
pub(crate) struct Sessions {
    pub(crate) servers: Arc<Servers>,
    classes: Mutex<HashMap<Duration, Arc<Class>>>,
    closed: AtomicBool,
}

/// One class: who comes while a session is being opened waits for it.
#[derive(Default)]
struct Class {
    sessions: Mutex<Vec<Arc<Session>>>,
    opening: SingleFlight<Result<()>>,
}

impl Class {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room in the first session that has it.
    fn room(&self, bytes: usize) -> Option<Room> {
        let sessions = self.lock();
        let session = Arc::clone(sessions.iter().find(|one| !one.is_over() && one.take(bytes))?);
        Some(Room { session, bytes })
    }
}

/// Room for one node in a session. Who may yet have to delete the node keeps it.
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

impl Sessions {
    pub(crate) fn new(servers: Arc<Servers>) -> Arc<Self> {
        let sessions = Arc::new(Self { servers, classes: Mutex::default(), closed: AtomicBool::new(false) });
        sessions.servers.runtime.spawn(drop_idle(Arc::downgrade(&sessions)));
        sessions
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Class>>> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a node with a path of so many bytes, in a session whose nodes live for `need` at least after every renewal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`] when the server gives no session that long; what connecting says.
    pub(crate) async fn room(&self, need: Duration, bytes: usize) -> Result<Room> {
        let room = self.of_class(timeout_for(need, self.servers.config.tick), bytes).await?;
        check_need(need, room.capacity())?;
        Ok(room)
    }

    /// The session for what needs no lease. It has no nodes.
    pub(crate) async fn desk(&self) -> Result<Arc<Session>> {
        Ok(Arc::clone(self.of_class(MOST, 0).await?.session()))
    }

    async fn of_class(&self, ask: Duration, bytes: usize) -> Result<Room> {
        let class = Arc::clone(self.lock().entry(ask).or_default());
        for _ in 0..OPENINGS {
            if self.is_closed() {
                return Err(Error::new(ErrorKind::Closed, "the ZooKeeper client has been closed"));
            }
            if let Some(room) = class.room(bytes) {
                return Ok(room);
            }
            // On the runtime that the client was made in, where the session's tasks live, not on the caller's.
            let opened = class.opening.join(&self.servers.runtime, || {
                let (servers, class) = (Arc::clone(&self.servers), Arc::clone(&class));
                async move {
                    if class.room(bytes).is_some() {
                        return Ok(());
                    }
                    let session = Session::open(&servers, ask).await?;
                    let mut sessions = class.lock();
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

    /// Lets sessions go that have no entry: the server takes so many connections of an address.
    fn sweep(&self) {
        self.lock().retain(|ask, class| {
            let mut sessions = class.lock();
            sessions.retain(|session| *ask == MOST || Arc::strong_count(session) > 1);
            // A class whose first session is being opened stays: somebody waits for it.
            !sessions.is_empty() || Arc::strong_count(class) > 1
        });
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends all sessions, and opens no more.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let classes: Vec<_> = self.lock().drain().map(|(_, class)| class).collect();
        let sessions: Vec<_> = classes.iter().flat_map(|class| std::mem::take(&mut *class.lock())).collect();
        futures_util::future::join_all(sessions.iter().map(|session| session.close())).await;
    }
}

async fn drop_idle(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(sessions) = sessions.upgrade() else { return };
        sessions.sweep();
    }
}

/// Refuses a lease that a session with this capacity does not carry.
pub(crate) fn check_need(need: Duration, longest: Duration) -> Result<()> {
    if need <= longest {
        return Ok(());
    }
    let human = humantime::format_duration;
    let text = format!(
        "a lease with its lock-delay of {} is longer than {}, the most that sessions of this server carry \
         (its maxSessionTimeout less the margins)",
        human(need),
        human(longest),
    );
    Err(Error::new(ErrorKind::InvalidLease, text))
}
