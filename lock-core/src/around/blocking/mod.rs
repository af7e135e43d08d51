//! The same locks for callers without async: scripts, tests, thread pools.
//!
//! A thread of its own runs what talks to the store in the background, so leases are renewed while the caller works, and while the
//! caller's own runtime, if it has one, is busy.
//!
//! Inside async code calls are refused, also in `spawn_blocking` and `block_in_place`, which look the same to this library: use
//! [`crate::Locks`] there, or a thread of your own (`std::thread::spawn`).
//! They are refused, too, in the destructor of a thread-local value that runs after Tokio's own: drop guards there, which calls nothing.

mod guard;
mod lock;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use crate::around::hand_over::HandOver;
use crate::backend::{Info, Release};
use crate::capabilities::Capabilities;
use crate::client;
use crate::error::Result;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;
use thread::ClientThread;

pub use guard::Guard;
pub use lock::{Lock, RwLock};
pub use thread::connect_by;

/// A client of one store; see [`crate::Locks`]. Cheap to clone.
///
/// When the last of the client, its locks and its guards is dropped, that waits up to 5 s for releases under way. Inside async code it
/// waits for nothing: they go on while the process lives.
#[derive(Clone, Debug)]
pub struct Locks {
    locks: client::Locks,
    thread: Arc<ClientThread>,
}

impl Locks {
    /// An exclusive lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName).
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Lock> {
        Ok(Lock::new(self.locks.mutex(name)?, &self.thread))
    }

    /// A lock that readers share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), or [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store has no shared entries.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        let lock = self.locks.rwlock(name)?;
        Ok(RwLock::new(&lock, &self.thread))
    }

    /// A lock that up to `permits` may hold at once.
    ///
    /// # Errors
    /// As [`crate::Locks::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Lock> {
        Ok(Lock::new(self.locks.semaphore(name, permits)?, &self.thread))
    }

    /// Who holds and who waits.
    ///
    /// # Errors
    /// An error of the store.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        self.thread.call(self.locks.inspect(name))
    }

    /// The names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// As [`crate::Locks::list`].
    pub fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.thread.call(self.locks.list(prefix, page))
    }

    /// Removes the entry with exactly this token.
    ///
    /// # Errors
    /// As [`crate::Locks::evict`].
    pub fn evict(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Release> {
        self.thread.call(self.locks.evict(name, token))
    }

    /// Which store this is.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.locks.info()
    }

    /// What the store can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.locks.capabilities()
    }

    /// Ends this client; see [`crate::Locks::close`].
    ///
    /// # Errors
    /// As [`crate::Locks::close`].
    pub fn close(&self, timeout: Duration) -> Result<()> {
        self.thread.call(self.locks.close(timeout))
    }

    /// Ends this client in order: no acquisition begins any more, waiters leave, guards have up to `timeout` to end; see
    /// [`crate::Locks::drain`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let (guard, lock) = (locks.mutex("orders/42")?.acquire()?, locks.mutex("orders/43")?);
    /// let worker = std::thread::spawn(move || guard.run(|| "paid")); // it drops the guard at its end
    /// locks.drain(std::time::Duration::from_secs(30))?;
    /// assert_eq!(lock.acquire().unwrap_err().kind(), onelock::ErrorKind::Closed);
    /// # worker.join().unwrap()?;
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Locks::drain`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        self.thread.call(self.locks.drain(timeout))
    }

    /// Goes on with a lock that another process has handed over; see [`crate::Locks::resume`] and [`Guard::hand_over`].
    ///
    /// # Errors
    /// As [`crate::Locks::resume`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn resume(&self, hand_over: HandOver) -> Result<Guard> {
        let guard = self.thread.call(self.locks.resume(hand_over))?;
        Ok(Guard::new(guard, &self.thread))
    }
}

#[cfg(test)]
mod tests;
