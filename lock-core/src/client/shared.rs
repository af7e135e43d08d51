//! What the locks and guards of a client share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::background::Background;
use super::entry::Upkeep;
use super::schedule::Schedule;
use super::settings::Settings;
use crate::around::observer::Observers;
use crate::backend::{Backend, Info, Note};
use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Margin;
use crate::name::LockName;
use crate::snapshot::Snapshot;

pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(super) margin: Margin,
    pub(super) note: Note,
    /// Captured once: what is dropped outside a runtime is finished here.
    pub(crate) runtime: Handle,
    pub(crate) schedule: Schedule,
    pub(crate) background: Background,
    pub(super) turns: Semaphore,
    pub(crate) closed: AtomicBool,
    /// `None` when nobody observes.
    pub(crate) observers: Option<Arc<Observers>>,
}

impl Client {
    /// How this client keeps what it holds, unless a lock says otherwise.
    pub(crate) fn upkeep(&self) -> Upkeep {
        let Settings { ttl, auto_renew, max_hold, .. } = self.settings;
        Upkeep { margin: self.margin, lease: ttl, auto_renew, max_hold, at_least: None }
    }

    pub(crate) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.is_closed("this client has been closed"));
        }
        Ok(())
    }

    /// The line of a name, with the tokens that users see.
    pub(crate) async fn inspect(&self, name: LockName) -> Result<Snapshot> {
        self.open()?;
        let mut snapshot = self.ask(|backend| async move { backend.inspect(&name).await }).await?;
        for view in snapshot.holders.iter_mut().chain(&mut snapshot.waiters) {
            view.token = self.settings.token_epoch.shown(view.token);
        }
        Ok(snapshot)
    }

    pub(super) fn is_closed(&self, text: &str) -> Error {
        Error::new(ErrorKind::Closed, text).at(&self.info.address)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.schedule.wake();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.info).finish_non_exhaustive()
    }
}
