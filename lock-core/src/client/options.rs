//! How a lock is to be taken and kept.

use std::time::Duration;

use super::lock::Lock;
use super::owner::Owner;
use super::retry::Retry;
use crate::backend::Note;
use crate::config;
use crate::error::Result;

impl Lock {
    /// The lease of a holder, rounded up to what the store gives. How soon others get the lock after this process died.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// let guard = locks.mutex("orders/42")?.ttl(Duration::from_secs(10))?.acquire().await?;
    /// assert_eq!(guard.ttl(), Duration::from_secs(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Result<Self> {
        self.terms.upkeep.lease = self.round(ttl)?;
        Ok(self)
    }

    /// The lease of a waiter; the ttl when that is shorter. How soon the line moves past this process after it died.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// let lock = locks.mutex("orders/42")?.waiter_lease(Duration::from_secs(3))?;
    /// # lock.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiter_lease(mut self, lease: Duration) -> Result<Self> {
        self.terms.waiter_lease = self.round(lease)?;
        Ok(self)
    }

    /// How long the lock stays blocked beyond the lease when its holder is lost, for resources that check no tokens.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease), or [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store has no lock-delay.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// // After a lost holder nobody gets it for another 20 s; after a release, at once.
    /// let lock = locks.mutex("printer")?.lock_delay(Duration::from_secs(20))?;
    /// lock.acquire().await?.release().await?;
    /// lock.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_delay(mut self, delay: Duration) -> Result<Self> {
        self.terms.delay = config::check_delay(delay, &self.client.capabilities, &self.client.info.scheme)?;
        Ok(self)
    }

    /// The longest time it may be held in all: then the guard is lost and the lease no longer renewed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease) when it is shorter than any lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// use onelock::LossReason;
    /// let guard = locks.mutex("nightly")?.max_hold(Duration::from_secs(60))?.acquire().await?;
    /// assert_eq!(guard.lost().await, LossReason::MaxHold);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, hold: Duration) -> Result<Self> {
        config::check_hold(hold)?;
        self.terms.upkeep.max_hold = Some(hold);
        Ok(self)
    }

    /// The holder's label, which `inspect` shows.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) when it is too long or has control characters.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.note("import of Monday")?.acquire().await?;
    /// assert_eq!(locks.inspect("orders/42").await?.holders[0].note.as_str(), "import of Monday");
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn note(mut self, text: impl AsRef<str>) -> Result<Self> {
        self.terms.note = Note::new(text)?;
        Ok(self)
    }

    /// How much of a semaphore it takes: 1 unless set.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let clock = std::sync::Arc::new(onelock::BootClock);
    /// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
    /// # let locks = onelock::Locks::builder(store).build()?;
    /// let memory = locks.semaphore("gigabytes", 16)?;
    /// let large = memory.clone().weight(12)?.acquire().await?;
    /// assert!(memory.clone().weight(5)?.try_acquire().await?.is_none());
    /// assert!(memory.weight(4)?.try_acquire().await?.is_some());
    /// # large.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for 0, for more than the semaphore has, and for a lock that is no semaphore.
    pub fn weight(mut self, weight: u32) -> Result<Self> {
        self.terms.mode = self.terms.mode.weighing(weight)?;
        Ok(self)
    }

    /// Whether the lease is renewed while the guard lives; without it the lock is held for one lease, or until
    /// [`Guard::extend`](crate::Guard::extend).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::LossReason;
    /// let guard = locks.mutex("once")?.auto_renew(false).acquire().await?;
    /// assert_eq!(guard.lost().await, LossReason::Expired); // at the end of its one lease
    /// # Ok(())
    /// # }
    /// ```
    pub fn auto_renew(mut self, on: bool) -> Self {
        self.terms.upkeep.auto_renew = on;
        self
    }

    /// Asks again and again instead of waiting in the line. It does not overtake those that wait there.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let lock = locks.mutex("cache")?.unfair();
    /// let guard = lock.acquire().await?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unfair(mut self) -> Self {
        self.terms.fair = false;
        self
    }

    /// How it asks again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::{ErrorKind, Retry};
    /// let held = locks.mutex("cache")?.acquire().await?;
    /// let lock = locks.mutex("cache")?.unfair().retry(Retry::default().attempts(2));
    /// assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    /// # drop(held);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry(mut self, retry: Retry) -> Self {
        self.terms.retry = retry;
        self
    }

    /// Acquires for an owner: what the owner holds already is entered again without asking the store.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) for an owner of another client.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let owner = locks.owner();
    /// let lock = locks.mutex("orders/42")?.owner(&owner)?;
    /// let outer = lock.acquire().await?;
    /// let inner = lock.try_acquire().await?; // the same owner: entered again
    /// assert!(inner.is_some());
    /// # drop(outer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn owner(mut self, owner: &Owner) -> Result<Self> {
        owner.check(&self.client)?;
        self.slot = Some(owner.slot(&self.terms.name));
        Ok(self)
    }

    fn round(&self, lease: Duration) -> Result<Duration> {
        self.client.capabilities.round_lease(lease, self.client.settings.max_ttl)
    }
}
