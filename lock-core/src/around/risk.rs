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
    /// Renewals begin when two thirds of a lease are left, so of a lease that is renewed at most the last half counts, however
    /// long the notice is; before the end by [`Lock::max_hold`](crate::Lock::max_hold), and where nothing is renewed, all of it does.
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
        let client = self.client();
        loop {
            // In this order: a renewal in between has moved the deadline.
            let (deadline, risk) = (self.deadline(), self.entry().risk(notice));
            if client.clock.now() >= risk {
                return;
            }
            tokio::select! {
                biased;
                renewed = self.renewed(deadline) => if renewed.is_none() { return },
                alive = client.sleep_until(risk) => if !alive { return },
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
        let asking = async {
            self.at_risk(notice).await;
            ask.send_replace(true);
            std::future::pending::<F::Output>().await
        };
        self.run(async {
            tokio::select! {
                biased;
                never = asking => never,
                // Begun in here: not where the lock is gone.
                done = async { work(Stop(stop)).await } => done,
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
    async fn a_wait_before_it_and_a_long_notice_put_no_lock_at_risk() {
        let locks = client();
        let lock = locks.mutex("n").unwrap();
        for (notice, max_hold) in
            [(SECOND * 10, None), (SECOND * 29, None), (SECOND * 29, Some(SECOND * 100))]
        {
            let lock = max_hold.map_or(lock.clone(), |most| lock.clone().max_hold(most).unwrap());
            let first = lock.clone().acquire().await.unwrap();
            let waiter = tokio::spawn(async move { lock.acquire().await });
            tokio::time::sleep(SECOND).await;
            first.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            let began = tokio::time::Instant::now();
            assert!(guard.remaining() < SECOND * 10, "by its waiter's lease: {:?}", guard.remaining());
            let risk = tokio::time::timeout(SECOND * 60, guard.at_risk(notice)).await;
            assert!(risk.is_err(), "{notice:?}");
            if max_hold.is_some() {
                guard.at_risk(notice).await;
                assert_eq!((began.elapsed() + SECOND / 2).as_secs(), 71);
            }
            guard.release().await.unwrap();
        }
    }

    /// A fixed lease counts in full from the renewal on that follows a wait.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_can_bring_the_risk_nearer() {
        let locks = client();
        let first = locks.mutex("n").unwrap().acquire().await.unwrap();
        let lock = locks.mutex("n").unwrap().auto_renew(false);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(SECOND).await;
        first.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        guard.at_risk(SECOND * 26).await;
        assert!(guard.remaining() > SECOND * 25, "{:?}", guard.remaining());
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
        // As one that spawns a task would.
        let begun =
            guard.run_until(SECOND, |_| -> std::future::Ready<()> { panic!("begun without the lock") });
        assert_eq!(begun.await.unwrap_err().kind(), ErrorKind::Lost);
    }
}
