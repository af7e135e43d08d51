//! A configured lock and its three ways to acquire.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{self, Progress, Terms};
use super::guard::Guard;
use super::owner::{Owner, SlotLease};
use super::retry::Retry;
use super::{Client, Locks};
use crate::around::observer::{Outcome, watched};
use crate::around::progress::Acquire;
use crate::backend::Note;
use crate::clock::{Clock, sleep_until};
use crate::config;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;

/// A lock by name and mode, with its terms. Making one talks to no store; it can be used any number of times and cloned.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock_core::Result<()> {
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
    slot: Option<Arc<SlotLease>>,
}

/// The two faces of a lock that readers share.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock_core::Result<()> {
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
    /// # async fn main() -> onelock_core::Result<()> {
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
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.rwlock("orders")?.write().mode(), onelock_core::Mode::Exclusive);
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

    /// The lease of a holder, rounded up to what the store gives. How soon others get the lock after this process died.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// let guard = locks.mutex("orders/42")?.ttl(Duration::from_secs(10))?.acquire().await?;
    /// assert_eq!(guard.ttl(), Duration::from_secs(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Result<Self> {
        self.terms.lease = self.round(ttl)?;
        if let Some(least) = &mut self.terms.upkeep.at_least {
            least.ttl = self.terms.lease;
        }
        Ok(self)
    }

    /// The lease of a waiter; the ttl when that is shorter. How soon the line moves past this process after it died.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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
    /// [`ErrorKind::InvalidLease`], or [`ErrorKind::Unsupported`] where the store has no lock-delay.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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
    /// [`ErrorKind::InvalidLease`] when it is shorter than any lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// use onelock_core::LossReason;
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
    /// [`ErrorKind::InvalidName`] when it is too long or has control characters.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let clock = std::sync::Arc::new(onelock_core::BootClock);
    /// # let store = std::sync::Arc::new(onelock_core::MemoryBackend::new(&onelock_core::MemoryStore::new(clock)));
    /// # let locks = onelock_core::Locks::builder(store).build()?;
    /// let memory = locks.semaphore("gigabytes", 16)?;
    /// let large = memory.clone().weight(12)?.acquire().await?;
    /// assert!(memory.clone().weight(5)?.try_acquire().await?.is_none());
    /// assert!(memory.weight(4)?.try_acquire().await?.is_some());
    /// # large.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for 0, for more than the semaphore has, and for a lock that is no semaphore.
    pub fn weight(mut self, weight: u32) -> Result<Self> {
        self.terms.mode = self.terms.mode.weighing(weight)?;
        Ok(self)
    }

    /// Whether the lease is renewed while the guard lives; without it the lock is held for one lease, or until
    /// [`Guard::extend`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock_core::LossReason;
    /// let guard = locks.mutex("once")?.auto_renew(false).acquire().await?;
    /// assert_eq!(guard.lost().await, LossReason::Expired); // at the end of its one lease
    /// # Ok(())
    /// # }
    /// ```
    pub fn auto_renew(mut self, on: bool) -> Self {
        self.terms.upkeep.auto_renew = on;
        self
    }

    /// Asks again and again instead of waiting in the line. It passes nobody who waits there.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock_core::{ErrorKind, Retry};
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
    /// [`ErrorKind::Misuse`] for an owner of another client.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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

    /// Acquires, waiting as long as it takes: in the line, or asking again if [`Lock::unfair`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the retry policy ran out; [`ErrorKind::WouldDeadlock`] when the owner waits for itself;
    /// [`ErrorKind::Closed`]; or what the store says, after as many failures as the retry policy tolerates.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line in the background. Nothing is held and nothing leaks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
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

    pub(crate) async fn acquire_with(&self, progress: Progress) -> Result<Guard> {
        if self.client.is_home() {
            return self.until_held(&progress).await;
        }
        let lock = self.clone();
        self.client.at_home(async move { lock.until_held(&progress).await }).await
    }

    async fn until_held(&self, progress: &Progress) -> Result<Guard> {
        match &self.slot {
            None => Ok(Guard::new(acquire::until_held(&self.client, &self.terms, progress).await?, None)),
            Some(slot) => slot.acquire(&self.client, &self.terms, progress).await,
        }
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
    /// # async fn main() -> onelock_core::Result<()> {
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
        watched(self, &Progress::default(), Outcome::Busy, async {
            if self.client.is_home() {
                return self.try_once().await;
            }
            let lock = self.clone();
            self.client.at_home(async move { lock.try_once().await }).await
        })
        .await
    }

    async fn try_once(&self) -> Result<Option<Guard>> {
        let tried = match &self.slot {
            None => acquire::once(&self.client, &self.terms)
                .await
                .map(|s| s.map(|handle| Guard::new(handle, None))),
            Some(slot) => slot.try_acquire(&self.client, &self.terms).await,
        };
        tried.map_err(|error| error.during("try_acquire").at(&self.client.info.address))
    }

    /// Acquires, waiting at most `timeout`; `None` when the time is over and the store has answered in it that others
    /// are ahead. A `timeout` of zero is one try.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`ErrorKind::Timeout`] when the store has not said within `timeout` whether the lock is free.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock_core::Result<()> {
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
        watched(self, &progress, Outcome::Timeout, async {
            if self.client.is_home() {
                return self.until_held_or(timeout, &progress).await;
            }
            let (lock, progress) = (self.clone(), progress.clone());
            self.client.at_home(async move { lock.until_held_or(timeout, &progress).await }).await
        })
        .await
    }

    async fn until_held_or(&self, timeout: Duration, progress: &Progress) -> Result<Option<Guard>> {
        if timeout.is_zero() {
            return self.try_once().await;
        }
        let until = self.client.clock.now() + timeout;
        tokio::select! {
            biased;
            guard = self.until_held(progress) => guard.map(Some),
            () = sleep_until(&self.client.clock, until) => {
                progress.timed_out(timeout).map(|()| None).map_err(|error| error.at(&self.client.info.address))
            }
        }
    }

    fn round(&self, lease: Duration) -> Result<Duration> {
        self.client.capabilities.round_lease(lease, self.client.settings.max_ttl)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("store", &self.info).finish_non_exhaustive()
    }
}

/// The error of everything that needs a lock that is gone.
pub(crate) fn lost(name: &LockName, reason: super::guard::LossReason, cause: Option<Error>) -> Error {
    let text = format!("`{name}` is not held any more: {reason}");
    let error = Error::new(ErrorKind::Lost, text).lost_by(reason);
    match cause {
        Some(cause) => error.caused_by(cause),
        None => error,
    }
}
