//! The least hold time: a short job does not run twice on hosts whose clocks differ.

use std::time::Duration;

use crate::client::lock::Lock;
use crate::error::Result;

impl Lock {
    /// How long the lock stays taken at least, counted from when it was acquired, however soon it is released, and also when
    /// its holder crashes: for jobs that hosts with differing clocks start at the same time of day.
    ///
    /// The store has a lease of that length from the first answer on (of the `ttl` where that is longer), so no process needs to live for
    /// it; where the client lives, and is not closed, it releases the entry at that moment. Together with [`Lock::max_hold`] it bounds a run from both sides.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let clock = std::sync::Arc::new(onelock::BootClock);
    /// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
    /// # let locks = onelock::Locks::builder(store).build()?;
    /// let nightly = locks.mutex("nightly-report")?.at_least(Duration::from_secs(300))?;
    /// if let Some(guard) = nightly.try_acquire().await? {
    ///     // a short job
    ///     guard.release().await?;
    /// }
    /// assert!(nightly.try_acquire().await?.is_none()); // a host whose clock is behind does not run it again
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`](crate::ErrorKind::InvalidLease) for a time that is no lease of this store;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where entries end with their client's session.
    pub fn at_least(mut self, time: Duration) -> Result<Self> {
        let client = &self.client;
        client.capabilities.require(client.capabilities.resume, "resume", &client.info.scheme)?;
        self.terms.upkeep.at_least = Some(client.capabilities.round_lease(time, client.settings.max_ttl)?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::Locks;
    use crate::clock::{Clock, TokioClock};
    use crate::error::ErrorKind;
    use crate::memory::{MemoryBackend, MemoryStore};

    const SECOND: Duration = Duration::from_secs(1);

    fn pair() -> (Locks, Locks) {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        let client = || {
            let backend = Arc::new(MemoryBackend::new(&store));
            Locks::builder(backend).clock(Arc::clone(&clock)).build().unwrap()
        };
        (client(), client())
    }

    async fn passed(began: tokio::time::Instant, locks: &Locks) -> Duration {
        locks.mutex("n").unwrap().acquire().await.unwrap().release().await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lock_stays_for_its_least_time_and_no_longer() {
        let (locks, other) = pair();
        // Shorter and longer than the lease, at once and after a wait.
        for (least, waits) in [(5, false), (300, false), (5, true), (300, true)] {
            let lock = locks.mutex("n").unwrap().at_least(SECOND * least).unwrap();
            let first = if waits { Some(other.mutex("n").unwrap().acquire().await.unwrap()) } else { None };
            let asked = tokio::spawn(async move { lock.acquire().await });
            tokio::time::sleep(SECOND).await;
            drop(first);
            let guard = asked.await.unwrap().unwrap();
            let began = tokio::time::Instant::now();
            guard.release().await.unwrap();
            let passed = passed(began, &other).await;
            let due = SECOND * least - if waits { Duration::ZERO } else { SECOND };
            assert!(passed >= due && passed < due + SECOND, "{least} {waits}: {passed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_without_its_client_and_after_a_drop() {
        let (locks, other) = pair();
        let began = tokio::time::Instant::now();
        drop(locks.mutex("n").unwrap().at_least(SECOND * 300).unwrap().acquire().await.unwrap());
        locks.close(SECOND).await.unwrap();
        let passed = passed(began, &other).await;
        assert!(passed >= SECOND * 300 && passed < SECOND * 301, "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_hold_is_released_at_once_and_asks_for_its_ttl() {
        let (locks, other) = pair();
        let guard = locks.mutex("n").unwrap().at_least(SECOND * 100).unwrap().acquire().await.unwrap();
        tokio::time::sleep(SECOND * 200).await;
        assert!(guard.is_held());
        assert_eq!(guard.ttl(), SECOND * 30);
        for longer in [100, 150] {
            guard.extend(SECOND * longer).await.unwrap();
            tokio::time::sleep(SECOND * 200).await;
            assert_eq!(guard.ttl(), SECOND * longer, "renewals go on asking for it");
        }
        guard.release().await.unwrap();
        assert!(other.mutex("n").unwrap().try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_evicted_holder_learns_it_from_its_release() {
        let (locks, other) = pair();
        let guard = locks.mutex("n").unwrap().at_least(SECOND * 5).unwrap().acquire().await.unwrap();
        other.evict("n", guard.token().unwrap()).await.unwrap();
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        let kind = |time| locks.mutex("n").unwrap().at_least(time).unwrap_err().kind();
        assert_eq!(kind(Duration::ZERO), ErrorKind::InvalidLease);
        assert_eq!(kind(Duration::MAX), ErrorKind::InvalidLease);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_wait_it_stays_whatever_happens_to_its_client() {
        let (locks, other) = pair();
        let first = other.mutex("n").unwrap().acquire().await.unwrap();
        let lock = locks.mutex("n").unwrap().at_least(SECOND * 300).unwrap();
        let (guard, released) = tokio::join!(lock.acquire(), first.release());
        released.unwrap();
        let _guard = guard.unwrap();
        let left = other.inspect("n").await.unwrap().holders[0].expires_in.unwrap();
        assert!(left > SECOND * 299, "{left:?}");
    }
}
