//! The three ways to acquire a lock.

use std::time::Duration;

use super::guard::Guard;
use super::lock::Lock;
use super::progress::Progress;
use crate::around::progress::Acquire;
use crate::clock::sleep_until;
use crate::error::{Error, Result};

impl Lock {
    /// Acquires, waiting as long as it takes: in the line, or asking again if [`Lock::unfair`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the retry policy ran out; [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock) when the owner waits for itself;
    /// [`ErrorKind::Evicted`](crate::ErrorKind::Evicted); [`ErrorKind::Closed`](crate::ErrorKind::Closed); or an error of the store, after as many failures as the retry policy tolerates.
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
        Acquire::new(self, None)
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
        self.watched(Some(Duration::ZERO), None).await
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
        self.watched(Some(timeout), None).await
    }

    /// Takes it within `limit` if there is one; once where that is zero.
    pub(super) async fn within(&self, limit: Option<Duration>, progress: &Progress) -> Result<Option<Guard>> {
        let Some(timeout) = limit else { return self.take(Some(progress)).await };
        let at_store = |error: Error| error.at(&self.client.info.address);
        if timeout.is_zero() {
            return self.take(None).await.map_err(|error| at_store(error.during("try_acquire")));
        }
        let until = self.client.clock.now() + timeout;
        tokio::select! {
            biased;
            guard = self.take(Some(progress)) => guard,
            () = sleep_until(&self.client.clock, until) => {
                progress.timed_out(timeout).map(|()| None).map_err(at_store)
            }
        }
    }
}
