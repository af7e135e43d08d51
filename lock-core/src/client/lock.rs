//! A configured lock and its three ways to acquire.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{self, Progress, Terms};
use super::guard::Guard;
use super::owner::Slot;
use super::retry::Retry;
use super::{Client, Locks};
use crate::around::observer::{Outcome, watched};
use crate::around::progress::Acquire;
use crate::clock::{Clock, sleep_until};
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
            lease: settings.ttl,
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

    /// How it shares the lock.
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

    pub(crate) fn lease(&self) -> Duration {
        self.terms.lease
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.clock
    }

    pub(crate) fn is_of(&self, locks: &Locks) -> bool {
        Arc::ptr_eq(&self.client, &locks.client)
    }

    /// Acquires, waiting as long as it takes: in the line, or asking again if [`Lock::unfair`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the retry policy ran out; [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock) when the owner waits for itself;
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); or what the store says, after as many failures as the retry policy tolerates.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line in the background. Nothing is held and nothing leaks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let token = guard.token()?; // for the resource
    /// guard.release().await?;
    /// # let _ = token;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> Acquire<'_> {
        Acquire::new(self)
    }

    /// Always gives a guard.
    pub(crate) async fn acquire_with(&self, progress: Progress) -> Result<Option<Guard>> {
        if self.client.is_home() {
            return self.take(Some(&progress)).await;
        }
        let lock = self.clone();
        self.client.at_home(Box::pin(async move { lock.take(Some(&progress)).await })).await
    }

    async fn take(&self, waits: Option<&Progress>) -> Result<Option<Guard>> {
        if let Some(slot) = &self.slot {
            return slot.acquire(&self.client, &self.terms, waits).await;
        }
        let handle = acquire::acquire(&self.client, &self.terms, waits).await?;
        Ok(handle.map(Guard::of))
    }

    /// Acquires if that is possible at once; `None` when it is busy. One request.
    ///
    /// # Errors
    /// As [`Lock::acquire`], without retries.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let lock = locks.mutex("orders/42")?;
    /// match lock.try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else does it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        let call = pin!(async {
            if self.client.is_home() {
                return self.try_once().await;
            }
            let lock = self.clone();
            self.client.at_home(Box::pin(async move { lock.try_once().await })).await
        });
        watched(self, &Progress::default(), Outcome::Busy, call).await
    }

    async fn try_once(&self) -> Result<Option<Guard>> {
        let tried = self.take(None).await;
        tried.map_err(|error| error.during("try_acquire").at(&self.client.info.address))
    }

    /// Acquires, waiting at most `timeout`; `None` when the time is over and the store has answered in it that others
    /// are ahead. A `timeout` of zero is one try.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) when the store has not said within `timeout` whether the lock is free.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// let lock = locks.mutex("orders/42")?;
    /// let held = lock.acquire().await?;
    /// assert!(lock.acquire_timeout(Duration::from_secs(5)).await?.is_none());
    /// held.release().await?;
    /// assert!(lock.acquire_timeout(Duration::from_secs(5)).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>> {
        let progress = Progress::default();
        let call = pin!(async {
            if self.client.is_home() {
                return self.until_held_or(timeout, &progress).await;
            }
            let (lock, progress) = (self.clone(), progress.clone());
            let call = Box::pin(async move { lock.until_held_or(timeout, &progress).await });
            self.client.at_home(call).await
        });
        watched(self, &progress, Outcome::Timeout, call).await
    }

    async fn until_held_or(&self, timeout: Duration, progress: &Progress) -> Result<Option<Guard>> {
        if timeout.is_zero() {
            return self.try_once().await;
        }
        let until = self.client.clock.now() + timeout;
        tokio::select! {
            biased;
            guard = self.take(Some(progress)) => guard,
            () = sleep_until(&self.client.clock, until) => {
                progress.timed_out(timeout).map(|()| None).map_err(|error| error.at(&self.client.info.address))
            }
        }
    }
}
