//! Time to stop before a lock is lost.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::guard::Guard;
use crate::error::Result;

/// Tells work that it must come to an end; see [`Guard::run_until`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Whether the work must come to an end.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the work must come to an end.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn asked(&self) {
        // The sender lives as long as the work runs; without it the work is over.
        let _ = self.0.clone().wait_for(|asked| *asked).await;
    }
}

impl Guard {
    /// Returns when no renewal has come and less than `notice` is left, or the lock is lost.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use std::time::Duration;
    /// let guard = locks.mutex("orders")?.ttl(Duration::from_millis(200))?.auto_renew(false).acquire().await?;
    /// guard.at_risk(Duration::from_millis(150)).await;
    /// assert!(guard.remaining() <= Duration::from_millis(150)); // save what can be saved
    /// # Ok(())
    /// # }
    /// ```
    pub async fn at_risk(&self, notice: Duration) {
        let mut deadline = self.deadline();
        loop {
            let left = self.remaining();
            if left <= notice {
                return;
            }
            tokio::select! {
                biased;
                renewed = self.renewed(deadline) => match renewed {
                    Some(renewed) => deadline = renewed,
                    None => return,
                },
                () = tokio::time::sleep(left - notice) => {}
            }
        }
    }

    /// Runs `work`, asks it to stop when no renewal has come and less than `notice` is left, and drops it at its next
    /// await when the lock is lost.
    ///
    /// # Errors
    /// As [`Guard::run`].
    ///
    /// # Cancel safety
    /// As [`Guard::run`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use std::time::Duration;
    /// let guard = locks.mutex("orders")?.ttl(Duration::from_millis(200))?.auto_renew(false).acquire().await?;
    /// let work = |stop: onelock::Stop| async move {
    ///     stop.asked().await;
    ///     "saved"
    /// };
    /// assert_eq!(guard.run_until(Duration::from_millis(150), work).await?, "saved");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until<F: Future>(
        &self,
        notice: Duration,
        work: impl FnOnce(Stop) -> F,
    ) -> Result<F::Output> {
        let (ask, stop) = watch::channel(false);
        let work = work(Stop(stop));
        let asking = async {
            self.at_risk(notice).await;
            ask.send_replace(true);
            std::future::pending::<F::Output>().await
        };
        self.run(async {
            tokio::select! {
                biased;
                never = asking => never,
                done = work => done,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, TokioClock};
    use crate::error::ErrorKind;
    use crate::memory::{MemoryBackend, MemoryStore};

    const SECOND: Duration = Duration::from_secs(1);

    fn client() -> crate::Locks {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        crate::Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock).build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_keep_a_lock_from_being_at_risk() {
        let lock = client().mutex("n").unwrap().ttl(SECOND * 10).unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(tokio::time::timeout(SECOND * 60, guard.at_risk(SECOND)).await.is_err());
        guard.release().await.unwrap();
        let guard = lock.auto_renew(false).acquire().await.unwrap();
        guard.at_risk(SECOND * 2).await;
        assert!(guard.remaining() <= SECOND * 2 && guard.remaining() > SECOND, "{:?}", guard.remaining());
        assert_eq!(guard.loss(), None);
        guard.lost().await;
        guard.at_risk(SECOND).await;
        assert_eq!(guard.loss(), Some(crate::LossReason::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_asked_to_stop_before_it_is_dropped() {
        let lock = client().mutex("n").unwrap().ttl(SECOND * 10).unwrap().auto_renew(false);
        let guard = lock.acquire().await.unwrap();
        let done = guard.run_until(SECOND, |stop| async move {
            assert!(!stop.is_asked());
            stop.asked().await;
            stop.is_asked()
        });
        assert!(done.await.unwrap());
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let guard = lock.acquire().await.unwrap();
        let stubborn = guard.run_until(SECOND, |_| std::future::pending::<()>()).await;
        assert_eq!(stubborn.unwrap_err().kind(), ErrorKind::Lost);
    }
}
