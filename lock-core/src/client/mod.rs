//! The client over a store: everything that is the same on all of them.
//!
//! | module | what it owns |
//! |---|---|
//! | [`builder`] | making a client, from a backend or by URL |
//! | [`operate`] | the line of a name for people: inspect, list, evict |
//! | [`lock`] | a configured lock |
//! | `ways` | the three ways to acquire it |
//! | `options` | how it is to be taken and kept |
//! | `acquire` | the acquire loop, polled in place |
//! | `progress` | what an acquisition under way has learned |
//! | `entry` | one acquisition's state: what holds, until when, why it was lost |
//! | `schedule` | which entries are renewed, and when |
//! | `renewer` | the one task that renews |
//! | `cancel_safe` | a call to the store: never cut half way |
//! | `runtime` | the runtime the client lives on, and calls from outside of it |
//! | `background` | how much is under way |
//! | `give_back` | releases until the store confirms them |
//! | `tries` | when a release is repeated, and how many at the same time |
//! | `close` | the end of the client |
//! | [`guard`] | what the user holds |
//! | `hold` | what the guards of one acquisition share |
//! | `loss` | how a guard waits for a renewal or a loss |
//! | [`owner`] | re-entrancy |
//! | `shared` | what the locks and guards of a client share |

pub mod builder;
pub mod guard;
pub mod lock;
pub(crate) mod loss;
pub mod operate;
mod options;
pub mod owner;
pub mod retry;
pub mod settings;

pub(crate) mod acquire;
pub(crate) mod background;
pub(crate) mod cancel_safe;
mod close;
pub(crate) mod entry;
#[cfg(test)]
mod entry_tests;
mod give_back;
pub(crate) mod hold;
pub(crate) mod progress;
mod renewer;
pub(crate) mod runtime;
mod schedule;
mod shared;
mod sync;
pub(crate) mod tries;
mod ways;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::config::Settings;
use crate::error::Result;
use crate::mode::Mode;
use crate::name::LockName;

use lock::{Lock, RwLock};
use owner::Owner;

pub(crate) use shared::Client;

/// A client of one store: makes locks, renews what is held, gives back what is dropped. Cheap to clone.
///
/// Make one per store and process and share it: all its locks use one connection and one renewer.
#[derive(Clone, Debug)]
pub struct Locks {
    pub(crate) client: Arc<Client>,
}

impl Locks {
    /// An exclusive lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(locks.mutex("orders/42")?.try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Lock> {
        self.lock(name, Mode::Exclusive)
    }

    /// A lock that readers share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), or [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store has no shared entries.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let config = locks.rwlock("config")?;
    /// let (one, two) = (config.read().acquire().await?, config.read().acquire().await?);
    /// assert!(config.write().try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock { read: self.lock(name.as_ref(), Mode::Shared)?, write: self.lock(name, Mode::Exclusive)? })
    }

    /// A lock that up to `permits` may hold at once. Where holders say different numbers the
    /// smallest counts, so the number can change while services are rolled out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for no permits, or [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the
    /// store has no permits.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let converter = locks.semaphore("converter", 2)?; // two at a time, in all processes together
    /// let (one, two) = (converter.acquire().await?, converter.acquire().await?);
    /// assert!(converter.try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Lock> {
        self.lock(name, Mode::permit(permits)?)
    }

    /// A lock of any mode.
    ///
    /// # Errors
    /// As the three above.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::Mode;
    /// let mode: Mode = "s".parse()?; // as configured: x, s, or p with a number
    /// let guard = locks.lock("orders", mode)?.acquire().await?;
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: impl AsRef<str>, mode: Mode) -> Result<Lock> {
        let name = LockName::new(name)?;
        self.client.capabilities.check_mode(mode, &self.client.info.scheme)?;
        Ok(Lock::new(Arc::clone(&self.client), name, mode))
    }

    /// A new owner for re-entrant acquisitions.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let owner = locks.owner();
    /// let lock = locks.mutex("orders/42")?.owner(&owner)?;
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?; // entered again: no request, the same token
    /// assert_eq!(outer.token()?, inner.token()?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(&self.client)
    }

    /// Which store this is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.client.info
    }

    /// What the store can do.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert!(locks.capabilities().fencing);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        &self.client.capabilities
    }

    /// The settings that every lock starts from, with times rounded as the store rounds them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.settings().ttl.as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.client.settings
    }

    /// The store itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let capabilities = locks.backend().capabilities();
    /// assert!(capabilities.fifo);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.client.backend
    }

    /// The clock of all deadlines.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders")?.acquire().await?;
    /// let left = guard.deadline().saturating_since(locks.clock().now());
    /// assert!(left > std::time::Duration::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.clock
    }

    /// How many acquires and background releases are under way.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// drop(locks.mutex("orders/42")?.acquire().await?);
    /// assert!(locks.pending() <= 1); // the release, until the store has confirmed it
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pending(&self) -> usize {
        self.client.background.count()
    }

    /// Ends this client: refuses new acquisitions, tells every guard that it is lost, waits up to `timeout` for the work under
    /// them to end, for the store to confirm all releases, and for the connections to close.
    ///
    /// A lost lock is given back when its guard goes, not before: work may still run under it. Where somebody waits for the
    /// loss, or waited when it came ([`Guard::run`](guard::Guard::run), [`Guard::lost`](guard::Guard::lost), an election), `close` waits for the guard to go. Any other guard it does not wait for: the
    /// lock is given back when that guard is dropped while the process still runs, or freed by its lease, and the
    /// connections close then. So drop guards before, or let [`Locks::drain`] wait for them.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) when something is still under way then: it goes on in the background, and what it does not
    /// reach is freed by its lease. Any error of closing the store.
    ///
    /// # Cancel safety
    /// The client stays closed; what is under way goes on in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// use onelock::LossReason;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// locks.close(Duration::from_secs(5)).await?;
    /// assert_eq!(guard.loss(), Some(LossReason::Closed));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self, timeout: Duration) -> Result<()> {
        let client = Arc::clone(&self.client);
        client.closed.store(true, Ordering::Release);
        self.client.finish(async move { client.close(timeout).await }).await
    }
}
