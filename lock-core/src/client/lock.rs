//! A configured lock.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{self, Terms};
use super::guard::Guard;
use super::owner::Slot;
use super::progress::Progress;
use super::retry::Retry;
use super::shared::Client;
use crate::error::Result;
use crate::mode::Mode;
use crate::name::LockName;

/// A lock by name and mode, with its terms. Making one talks to no store; it can be used any number of times and cloned.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let locks = onelock::connect("memory://").await?;
/// use std::time::Duration;
/// let lock = locks.mutex("orders/42")?.ttl(Duration::from_secs(10))?.note("import")?;
/// let guard = lock.acquire().await?;
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) client: Arc<Client>,
    pub(crate) terms: Terms,
    /// For an owner: where it keeps what it holds of this name.
    pub(super) slot: Option<Arc<Slot>>,
}

/// The two faces of a lock that readers share.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let locks = onelock::connect("memory://").await?;
/// let config = locks.rwlock("config")?;
/// let reader = config.read().acquire().await?;
/// reader.release().await?;
/// let writer = config.write().acquire().await?;
/// writer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(super) read: Lock,
    pub(super) write: Lock,
}

impl RwLock {
    /// The shared lock.
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The exclusive lock.
    pub fn write(&self) -> Lock {
        self.write.clone()
    }
}

impl Lock {
    pub(super) fn new(client: Arc<Client>, name: LockName, mode: Mode) -> Self {
        let settings = &client.settings;
        let terms = Terms {
            name,
            mode,
            waiter_lease: settings.waiter_lease,
            delay: settings.lock_delay,
            note: client.note.clone(),
            // Where there is no line, the store may yet have a queue of its own.
            fair: true,
            retry: Retry::default(),
            upkeep: client.upkeep(),
        };
        Self { client, terms, slot: None }
    }

    /// The name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.mutex("orders/42")?.name().as_str(), "orders/42");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.terms.name
    }

    /// The mode in which it asks for the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.rwlock("orders")?.write().mode(), onelock::Mode::Exclusive);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.terms.mode
    }

    /// Takes it on the client's runtime, wherever the caller is. Without a `limit` it always gives a guard.
    pub(crate) async fn acquire_with(
        &self,
        progress: Progress,
        limit: Option<Duration>,
    ) -> Result<Option<Guard>> {
        if self.client.is_home() {
            return self.client.here(pin!(self.within(limit, &progress))).await;
        }
        let lock = self.clone();
        let call = Box::pin(async move { Ok(lock.within(limit, &progress).await?.inspect(Guard::sent)) });
        Ok(self.client.at_home(call).await?.inspect(Guard::arrived))
    }

    pub(super) async fn take(&self, waits: Option<&Progress>) -> Result<Option<Guard>> {
        if let Some(slot) = &self.slot {
            return slot.acquire(&self.client, &self.terms, waits).await;
        }
        let handle = acquire::acquire(&self.client, &self.terms, waits).await?;
        Ok(handle.map(|handle| Guard::new(handle, None)))
    }
}
