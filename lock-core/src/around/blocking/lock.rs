//! Locks, and how they are taken.

use std::sync::Arc;
use std::time::Duration;

use super::guard::Guard;
use super::thread::ClientThread;
use crate::client;
use crate::client::retry::Retry;
use crate::error::Result;
use crate::mode::Mode;
use crate::name::LockName;

/// A configured lock; see [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(super) lock: client::lock::Lock,
    thread: Arc<ClientThread>,
}

/// The two faces of a lock that readers share.
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    pub(super) fn new(lock: &client::lock::RwLock, thread: &Arc<ClientThread>) -> Self {
        Self { read: Lock::new(lock.read(), thread), write: Lock::new(lock.write(), thread) }
    }

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
    pub(super) fn new(lock: client::lock::Lock, thread: &Arc<ClientThread>) -> Self {
        Self { lock, thread: Arc::clone(thread) }
    }

    fn with(mut self, change: impl FnOnce(client::lock::Lock) -> Result<client::lock::Lock>) -> Result<Self> {
        self.lock = change(self.lock)?;
        Ok(self)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// How it shares the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.lock.mode()
    }

    /// The lease of a holder; see [`crate::Lock::ttl`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease).
    pub fn ttl(self, ttl: Duration) -> Result<Self> {
        self.with(|lock| lock.ttl(ttl))
    }

    /// The lease of a waiter; see [`crate::Lock::waiter_lease`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease).
    pub fn waiter_lease(self, lease: Duration) -> Result<Self> {
        self.with(|lock| lock.waiter_lease(lease))
    }

    /// How long the lock stays blocked beyond the lease when its holder is lost; see [`crate::Lock::lock_delay`].
    ///
    /// # Errors
    /// As [`crate::Lock::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Result<Self> {
        self.with(|lock| lock.lock_delay(delay))
    }

    /// The longest time it may be held in all; see [`crate::Lock::max_hold`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease).
    pub fn max_hold(self, hold: Duration) -> Result<Self> {
        self.with(|lock| lock.max_hold(hold))
    }

    /// How long it stays taken at least, however soon it is released; see [`crate::Lock::at_least`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let nightly = locks.mutex("nightly-report")?.at_least(std::time::Duration::from_secs(300))?;
    /// nightly.acquire()?.release()?; // a short job
    /// assert!(nightly.try_acquire()?.is_none()); // a host whose clock is behind does not run it again
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Lock::at_least`].
    pub fn at_least(self, time: Duration) -> Result<Self> {
        self.with(|lock| lock.at_least(time))
    }

    /// The holder's label.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName).
    pub fn note(self, text: impl AsRef<str>) -> Result<Self> {
        self.with(|lock| lock.note(text))
    }

    /// How much of a semaphore it takes; see [`crate::Lock::weight`].
    ///
    /// # Errors
    /// As [`crate::Lock::weight`].
    pub fn weight(self, weight: u32) -> Result<Self> {
        self.with(|lock| lock.weight(weight))
    }

    /// Whether the lease is renewed while the guard lives.
    pub fn auto_renew(mut self, on: bool) -> Self {
        self.lock = self.lock.auto_renew(on);
        self
    }

    /// Asks again and again instead of waiting in the line.
    pub fn unfair(mut self) -> Self {
        self.lock = self.lock.unfair();
        self
    }

    /// How it asks again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.lock = self.lock.retry(retry);
        self
    }

    fn guard(&self, guard: client::guard::Guard) -> Guard {
        Guard::new(guard, &self.thread)
    }

    /// Acquires, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn acquire(&self) -> Result<Guard> {
        self.thread.call(self.lock.acquire()).map(|guard| self.guard(guard))
    }

    /// Acquires if that is possible at once; `None` when it is busy.
    ///
    /// # Errors
    /// As [`crate::Lock::try_acquire`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        let tried = self.thread.call(self.lock.try_acquire())?;
        Ok(tried.map(|guard| self.guard(guard)))
    }

    /// Acquires, waiting at most `timeout`; see [`crate::Lock::acquire_timeout`].
    ///
    /// # Errors
    /// As [`crate::Lock::acquire_timeout`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>> {
        let tried = self.thread.call(self.lock.acquire_timeout(timeout))?;
        Ok(tried.map(|guard| self.guard(guard)))
    }
}
