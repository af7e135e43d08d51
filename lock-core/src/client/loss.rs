//! How a guard waits for a renewal or the loss of its lock, and stops the work under it.

use std::future::{Future, poll_fn};
use std::task::Poll;

use super::acquire::Handle;
use super::entry::Entry;
use super::guard::Guard;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::loss::LossReason;

impl Entry {
    /// Waits for a change after which `done` says so.
    pub(crate) async fn until(&self, done: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if done() {
                return;
            }
            changed.await;
        }
    }
}

impl Guard {
    /// Waits until the deadline is another than `seen`, and gives it; `None` once the lock is lost.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let first = guard.deadline();
    /// let second = guard.renewed(first).await.expect("it is renewed");
    /// assert!(second > first);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renewed(&self, seen: Timestamp) -> Option<Timestamp> {
        self.watch(|deadline| deadline != seen).await.ok()
    }

    /// Waits until the lock is lost, and says why. It is signalled at the deadline by this client's clock, which is
    /// before the store can give the lock to another. A lock that was lost by the clock or a close is given back when its guard is
    /// dropped or released, not before: until then the work under it may still be running. Where a lock-delay is set it
    /// stays blocked until its lease and the delay have passed.
    ///
    /// The timer is one of the runtime that the client was made on: while that stalls, this comes late on any other runtime, too.
    /// [`Guard::is_held`] and each step of [`Guard::run`] read the clock themselves.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::LossReason;
    /// let guard = locks.mutex("orders/42")?.auto_renew(false).acquire().await?;
    /// let reason = guard.lost().await;
    /// assert_eq!(reason, LossReason::Expired);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> LossReason {
        loop {
            // No deadline is the one that it waits for.
            if let Err(reason) = self.watch(|_| false).await {
                return reason;
            }
        }
    }

    /// Waits for a deadline that is `awaited`, or for the loss.
    async fn watch(&self, awaited: impl Fn(Timestamp) -> bool) -> Result<Timestamp, LossReason> {
        let Handle { client, entry } = self.handle();
        let _watch = entry.watch();
        loop {
            let changed = entry.changed.notified();
            let deadline = self.held()?;
            // A timer may be late on a busy runtime. [`Self::run`] polls this before each step of the work, so each poll
            // reads the clock.
            let seen = poll_fn(|_| match self.held() {
                Ok(deadline) if !awaited(deadline) => Poll::Pending,
                seen => Poll::Ready(seen),
            });
            tokio::select! {
                biased;
                seen = seen => return seen,
                () = changed => {}
                home = client.sleep_until(deadline) => if !home {
                    // Nothing renews it any more.
                    entry.end(client.clock.now(), LossReason::Closed);
                }
            }
        }
    }

    /// Runs `work` while the lock is held, and drops it at its next await when the lock is lost.
    ///
    /// Work that does not await, or runs in `spawn_blocking`, cannot be stopped this way. What it had under way elsewhere, such as a
    /// commit, may be done or not.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the work was stopped, or not begun.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock::ErrorKind;
    /// let guard = locks.mutex("orders/42")?.auto_renew(false).acquire().await?;
    /// let done = guard.run(async { 6 * 7 }).await?;
    /// assert_eq!(done, 42);
    /// let never = guard.run(std::future::pending::<()>()).await; // stopped when the lease ends
    /// assert_eq!(never.unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_error(reason)),
            done = work => Ok(done),
        }
    }
}
