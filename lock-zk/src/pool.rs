//! The sessions of a client: one per class of leases, and one for what needs no lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::flight::SingleFlight;
use lock_core::{Clock, Error, ErrorKind, Result};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::config::ZkConfig;
use crate::session::{Session, capacity, timeout_for};

/// What the desk asks for: more than any server gives, so that the answer tells the most it gives.
const MOST: Duration = Duration::from_secs(20 * 24 * 3600);

/// How long a session without entries is kept for the next one.
const IDLE: Duration = Duration::from_secs(120);

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

/// One class: whoever comes while its session is being opened waits for it.
#[derive(Default)]
struct Slot {
    session: Mutex<Option<Arc<Session>>>,
    opening: SingleFlight<Result<Arc<Session>>>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn living(&self) -> Option<Arc<Session>> {
        self.lock().as_ref().filter(|session| !session.is_over()).cloned()
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

    /// A session whose nodes live for `need` at least after every renewal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`] when the server gives no session that long; what connecting says.
    pub(crate) async fn session(self: &Arc<Self>, need: Duration) -> Result<Arc<Session>> {
        let session = self.of_class(timeout_for(need, self.config.tick)).await?;
        if session.capacity() < need {
            let text = format!(
                "a lease with its lock-delay of {} is longer than the {} that sessions of this server carry",
                humantime::format_duration(need),
                humantime::format_duration(session.capacity()),
            );
            return Err(Error::new(ErrorKind::InvalidLease, text));
        }
        Ok(session)
    }

    /// The session for what needs no lease. It has no nodes.
    pub(crate) async fn desk(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.of_class(MOST).await
    }

    async fn of_class(self: &Arc<Self>, ask: Duration) -> Result<Arc<Session>> {
        let slot = Arc::clone(self.slots().entry(ask).or_default());
        if let Some(session) = slot.living() {
            return Ok(session);
        }
        // On the runtime that the client was made in, where the session's tasks live, whoever asks.
        let opened = slot.opening.join(&self.runtime, || {
            let (target, slot) = (Arc::clone(self), Arc::clone(&slot));
            async move {
                if let Some(session) = slot.living() {
                    return Ok(session);
                }
                let session = Session::open(&target, ask, ask != MOST).await?;
                *slot.lock() = Some(Arc::clone(&session));
                Ok(session)
            }
        });
        let gone = || Err(Error::new(ErrorKind::Closed, "the runtime this client was made in is gone"));
        opened.await.unwrap_or_else(gone)
    }

    /// Lets a session go that nobody has used for long, given how long it is idle already; whether it is idle now.
    pub(crate) fn forget_idle(&self, session: &Arc<Session>, idle: Duration) -> bool {
        // One for the pool and one for the caller.
        if Arc::strong_count(session) > 2 {
            return false;
        }
        if idle >= IDLE {
            self.slots().retain(|ask, slot| {
                *ask == MOST || !slot.lock().as_ref().is_some_and(|other| Arc::ptr_eq(session, other))
            });
        }
        true
    }

    /// Ends all sessions.
    pub(crate) async fn close(&self) {
        let sessions: Vec<_> = self.slots().drain().filter_map(|(_, slot)| slot.lock().take()).collect();
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
