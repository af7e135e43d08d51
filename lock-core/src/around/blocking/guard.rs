//! A held lock.

use std::sync::Arc;
use std::time::Duration;

use super::thread::ClientThread;
use crate::around::hand_over::HandOver;
use crate::client;
use crate::client::guard::LossReason;
use crate::error::Result;
use crate::name::LockName;
use crate::token::FencingToken;

/// A held lock; see [`crate::Guard`]. Dropping it gives the lock back in the background.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    // Before the thread, so that the release is under way when the thread is asked to end.
    pub(super) guard: client::guard::Guard,
    thread: Arc<ClientThread>,
}

impl Guard {
    pub(super) fn new(guard: client::guard::Guard, thread: &Arc<ClientThread>) -> Self {
        Self { guard, thread: Arc::clone(thread) }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// The fencing token.
    ///
    /// # Errors
    /// As [`crate::Guard::token`].
    pub fn token(&self) -> Result<FencingToken> {
        self.guard.token()
    }

    /// Whether the lock is held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How long it may be believed in yet if no renewal comes; zero once lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Why it is not held any more; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guard.loss()
    }

    /// Waits until the lock is lost, and says why; see [`crate::Guard::lost`].
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn lost(&self) -> Result<LossReason> {
        self.thread.call(async { Ok(self.guard.lost().await) })
    }

    /// Runs `work`, and says whether the lock was held until its end. Work that blocks cannot be stopped: let long work look
    /// at [`Guard::is_held`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost before the work ended, or before it began: then it was not run.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.guard.check()?;
        // So that `close` waits for its end.
        let _watch = self.guard.entry().watch();
        let done = work();
        self.guard.check()?;
        Ok(done)
    }

    /// Asks the store for a lease of `lease` from now on.
    ///
    /// # Errors
    /// As [`crate::Guard::extend`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.thread.call(self.guard.extend(lease))
    }

    /// Lets another process go on with this lock; see [`crate::Guard::hand_over`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let text = String::from(locks.mutex("deploy")?.acquire()?.hand_over()?); // to the other process
    /// locks.resume(text.parse()?)?.release()?; // in the other process, with a client of its own
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Guard::hand_over`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code. Then the lock is given back.
    pub fn hand_over(self) -> Result<HandOver> {
        self.thread.call(self.guard.hand_over())
    }

    /// Gives the lock back and waits until the store says so.
    ///
    /// # Errors
    /// As [`crate::Guard::release`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code: then it is released in the background.
    pub fn release(self) -> Result<()> {
        self.thread.call(self.guard.release())
    }
}
