//! What the calls of one client share: its sessions, what they hold, and the one that looks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, HolderId, HolderMap, LockName, Release, Result};

use super::Setup;
use super::asked;
use super::dialect::{Answer, Ask, Dialect, Id, Session, Whom};
use super::hold::{Hold, silent};
use super::names::Key;
use super::queue::Places;
use super::spares::Spares;
use super::turns::Turns;

pub(super) struct Shared<D: Dialect> {
    pub(super) setup: Setup,
    pub(super) dialect: Arc<D>,
    /// One for each session that holds or waits.
    pub(super) turns: Arc<Turns<D::Conn>>,
    pub(super) spares: Spares<D::Conn>,
    pub(super) held: Mutex<HolderMap<Arc<Hold<D::Conn>>>>,
    /// Sessions whose connection was given up while they might have held something for this holder.
    pub(super) lost: Mutex<HolderMap<Id>>,
    pub(super) places: Places<D::Conn>,
    /// The session that looks and ends others.
    pub(super) side: tokio::sync::Mutex<Option<Session<D::Conn>>>,
    pub(super) closed: AtomicBool,
}

impl<D: Dialect> Shared<D> {
    pub(super) fn new(setup: Setup, dialect: D, side: Session<D::Conn>) -> Self {
        Self {
            turns: Turns::new(setup.connections),
            setup,
            dialect: Arc::new(dialect),
            spares: Spares::default(),
            held: Mutex::default(),
            lost: Mutex::default(),
            places: Places::default(),
            side: tokio::sync::Mutex::new(Some(side)),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store of session locks was closed"));
        }
        Ok(())
    }

    pub(super) fn held(&self) -> MutexGuard<'_, HolderMap<Arc<Hold<D::Conn>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, name: &LockName, holder: HolderId) -> Option<Arc<Hold<D::Conn>>> {
        self.held().get(&holder).filter(|hold| hold.name == *name).cloned()
    }

    pub(super) fn lost(&self) -> MutexGuard<'_, HolderMap<Id>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn key(&self, name: &LockName) -> Key {
        Key::new(&self.setup.space, name)
    }

    pub(super) fn limit(&self) -> Duration {
        self.setup.request_timeout
    }

    /// Asks by the session that is nobody's, in a task of its own: a caller that does not go on must not keep it.
    pub(super) async fn aside(self: &Arc<Self>, ask: Ask) -> Result<Answer> {
        let shared = Arc::clone(self);
        let asked = tokio::spawn(async move { shared.ask_aside(ask).await });
        let ended = |_| Err(Error::new(ErrorKind::Unavailable, "the task that asked has ended"));
        asked.await.unwrap_or_else(ended)
    }

    async fn ask_aside(&self, ask: Ask) -> Result<Answer> {
        let mut side = self.side.lock().await;
        loop {
            let kept = side.take();
            let fresh = kept.is_none();
            let session = match kept {
                Some(session) => session,
                None => self.dialect.connect().await.map_err(Error::unsent)?,
            };
            let mut asked = asked::ask(&self.dialect, session, ask.clone());
            let Some((session, answer)) = asked.within(self.limit()).await else {
                return Err(silent());
            };
            match answer {
                Ok(answer) => {
                    *side = Some(session);
                    return Ok(answer);
                }
                // It broke while it was idle. Asking twice is asking once: what was ended stays ended.
                Err(error) if broke(&error) && !fresh => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a session whose connection was given up; whether it was there yet.
    pub(super) async fn end(self: &Arc<Self>, whom: Whom) -> Result<Release> {
        Ok(match self.aside(Ask::End(whom)).await? {
            Answer::Yes => Release::Released,
            _ => Release::NotHeld,
        })
    }
}

/// Whether a session has come to its end, as the server or the connection says.
pub(super) fn broke(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Lost
}
