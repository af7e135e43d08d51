//! A client that comes to its end in order.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::client::Locks;
use crate::client::entry::View;
use crate::clock::sleep_until;
use crate::error::{Error, ErrorKind, Result};

/// How long the closing may take at least, after a time of draining that is over.
const CLOSING: Duration = Duration::from_secs(1);

impl Locks {
    /// Ends this client in order: no acquisition begins any more ([`ErrorKind::Closed`]), waiters leave their lines, guards have
    /// up to `timeout` to end; then [`Locks::close`].
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when guards have not ended: their locks are lost then, with
    /// [`LossReason::Closed`](crate::LossReason::Closed), and given back when they go. As [`Locks::close`], which has what is left of the time, at least a second.
    ///
    /// # Cancel safety
    /// The client refuses new acquisitions from the first poll on; what is held is still renewed. A closing that has begun goes on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders")?.acquire().await?;
    /// let closing = tokio::spawn({
    ///     let locks = locks.clone();
    ///     async move { locks.drain(std::time::Duration::from_secs(30)).await }
    /// });
    /// guard.release().await?; // the work that was under way ends
    /// closing.await.expect("it does not panic")?;
    /// assert!(locks.mutex("orders")?.acquire().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, timeout: Duration) -> Result<()> {
        let locks = self.clone();
        locks.client.closed.store(true, Ordering::Release);
        self.client.at_home(async move { drain(&locks, timeout).await }).await
    }
}

async fn drain(locks: &Locks, timeout: Duration) -> Result<()> {
    let client = &locks.client;
    let until = client.clock.now() + timeout;
    let guards_end = async {
        loop {
            let now = client.clock.now();
            // Each time: an acquire that was under way may have joined a line since.
            let (unused, held): (Vec<_>, Vec<_>) =
                client.schedule.all().into_iter().partition(|entry| entry.end_unreceived(now));
            unused.iter().for_each(|entry| client.settle(entry, now));
            let Some(entry) = held.first() else { return };
            // The renewer looks at it when its time is over.
            entry.until(|| matches!(entry.view(client.clock.now()), View::Over(_))).await;
            client.schedule.track(entry);
        }
    };
    let ended = tokio::select! {
        biased;
        () = guards_end => Ok(()),
        () = sleep_until(&client.clock, until) => {
            let text = format!("{} locks were still held after {timeout:?}; they are lost now", client.schedule.all().len());
            Err(Error::new(ErrorKind::Timeout, text).during("drain").at(&client.info.address))
        }
    };
    let closed = locks.close(until.saturating_since(client.clock.now()).max(CLOSING)).await;
    ended.and(closed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::LossReason;
    use crate::clock::{Clock, TokioClock};
    use crate::memory::{MemoryBackend, MemoryStore};

    const SECOND: Duration = Duration::from_secs(1);

    fn client(store: &Arc<MemoryStore>, clock: &Arc<dyn Clock>) -> Locks {
        let backend = Arc::new(MemoryBackend::new(store));
        Locks::builder(backend).clock(Arc::clone(clock)).build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_leave_and_guards_may_end() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        let locks = client(&store, &clock);
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        let waiter = locks.mutex("n").unwrap();
        let waiter = tokio::spawn(async move { waiter.acquire().await });
        tokio::time::sleep(SECOND).await;
        let work = tokio::spawn(async move {
            tokio::time::sleep(SECOND * 100).await;
            guard.release().await
        });
        let draining = {
            let locks = locks.clone();
            tokio::spawn(async move { locks.drain(SECOND * 200).await })
        };
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(locks.mutex("m").unwrap().try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
        assert!(!draining.is_finished());
        work.await.unwrap().unwrap();
        draining.await.unwrap().unwrap();
        assert_eq!(store.names(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_that_never_ends_is_lost_when_the_time_is_over() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        let locks = client(&store, &clock);
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        let began = tokio::time::Instant::now();
        let error = locks.drain(SECOND * 100).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Timeout && error.verb() == Some("drain"), "{error}");
        assert_eq!(began.elapsed().as_secs(), 100);
        assert_eq!(guard.loss(), Some(LossReason::Closed));
        // One that is lost before holds nobody up.
        let locks = client(&store, &clock);
        let guard = locks.mutex("m").unwrap().auto_renew(false).acquire().await.unwrap();
        locks.drain(SECOND * 100).await.unwrap();
        assert_eq!(guard.loss(), Some(LossReason::Expired));
    }

    /// Blocks between the end of a hold and its release until signalled, or for a while.
    #[derive(Debug)]
    struct Between(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl crate::Observer for Between {
        fn on_event(&self, event: &crate::Event<'_>) {
            if matches!(event, crate::Event::Ended { .. }) {
                let _ = self.0.lock().unwrap().recv_timeout(SECOND / 5);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_guard_that_is_going_is_waited_for() {
        let clock: Arc<dyn Clock> = Arc::new(crate::BootClock);
        let store = MemoryStore::new(Arc::clone(&clock));
        for released in [true, false] {
            let (drained, waits) = std::sync::mpsc::channel();
            let settings = crate::Settings::default().observer(Arc::new(Between(waits.into())));
            let backend = Arc::new(MemoryBackend::new(&store));
            let builder = Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings);
            let locks = builder.build().unwrap();
            let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
            let going =
                tokio::spawn(
                    async move { if released { guard.release().await.unwrap() } else { drop(guard) } },
                );
            locks.drain(SECOND * 60).await.unwrap();
            assert_eq!(store.names(), 0, "released: {released}");
            let _ = drained.send(());
            going.await.unwrap();
        }
    }
}
