//! What a test of a service needs: paused time, losses, others that hold, and a store that is away. For tests only.
//!
//! ```
//! use onelock::{LossReason, testing};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> onelock::Result<()> {
//! let locks = testing::paused()?;
//! let theirs = testing::hold_elsewhere(&locks, "orders/42").await?;
//! assert!(locks.mutex("orders/42")?.try_acquire().await?.is_none());
//! theirs.release().await?;
//!
//! let guard = locks.mutex("orders/42")?.acquire().await?;
//! let outage = testing::outage(&locks)?;
//! assert_eq!(guard.lost().await, LossReason::Expired); // 27 s of paused time later
//! drop(outage);
//!
//! let guard = locks.mutex("orders/43")?.acquire().await?;
//! testing::lose(&guard, LossReason::NotHeld);
//! assert!(guard.token().is_err());
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::backend::Backend;
use crate::client::acquire::Handle;
use crate::client::guard::Guard;
use crate::client::{Client, Locks};
use crate::clock::{Clock, TokioClock};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MemoryBackend, MemoryStore};
use crate::model::loss::LossReason;
use crate::toolkit::{Layer, Layered, Mutex};

/// A client of a memory store of its own, both on the paused clock of the current runtime.
///
/// # Errors
/// [`ErrorKind::Misuse`] where tokio's time is not paused: `#[tokio::test(start_paused = true)]` pauses it.
pub fn paused() -> Result<Locks> {
    let Some(clock) = TokioClock::paused() else {
        let text = "the time of this runtime is not paused; `#[tokio::test(start_paused = true)]` pauses it";
        return Err(Error::new(ErrorKind::Misuse, text));
    };
    let clock: Arc<dyn Clock> = Arc::new(clock);
    over(Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock)))), clock)
}

/// A client of any store that [`outage`] can part from it.
///
/// # Errors
/// As [`Builder::build`](crate::Builder::build).
pub fn over(store: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Result<Locks> {
    let switched = Switched { store, away: Arc::new(watch::Sender::new(0)) };
    let locks = Locks::builder(Arc::new(Layered(switched.clone()))).clock(clock).build()?;
    let mut clients = CLIENTS.lock();
    clients.retain(|(client, _)| client.strong_count() > 0);
    clients.push((Arc::downgrade(&locks.client), switched));
    Ok(locks)
}

/// Ends a hold for this reason, as if it had happened. After [`LossReason::NotHeld`] the store has no entry either; after the others
/// it keeps it until the guard goes.
pub fn lose(guard: &Guard, reason: LossReason) {
    let Handle { client, entry } = guard.handle();
    let now = client.clock.now();
    entry.end(now, reason);
    if reason == LossReason::NotHeld {
        entry.waive_least_time();
        client.give_back(entry);
    }
    client.settle(entry, now);
}

/// Holds the lock `name` by another client of the same store, whatever has become of the way of `locks` to it.
///
/// # Errors
/// [`ErrorKind::Busy`] when it is not free; as [`crate::Lock::try_acquire`].
pub async fn hold_elsewhere(locks: &Locks, name: &str) -> Result<Guard> {
    let store = switched(locks).map_or_else(|_| Arc::clone(locks.backend()), |switched| switched.store);
    let other =
        Locks::builder(store).clock(Arc::clone(locks.clock())).settings(locks.settings().clone()).build()?;
    let held = other.mutex(name)?.note("elsewhere")?.try_acquire().await?;
    held.ok_or_else(|| Error::new(ErrorKind::Busy, format!("`{name}` is not free to be held elsewhere")))
}

/// While the answer lives, every call of `locks` to its store fails with [`ErrorKind::Unavailable`].
///
/// # Errors
/// [`ErrorKind::Misuse`] for a client that was not made by [`paused`] or [`over`].
pub fn outage(locks: &Locks) -> Result<Outage> {
    let away = switched(locks)?.away;
    away.send_modify(|count| *count += 1);
    Ok(Outage(away))
}

/// A store that is away, until this is dropped.
#[derive(Debug)]
#[must_use = "the outage ends when this is dropped"]
pub struct Outage(Arc<watch::Sender<u32>>);

impl Drop for Outage {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

static CLIENTS: Mutex<Vec<(Weak<Client>, Switched)>> = Mutex::new(Vec::new());

fn switched(locks: &Locks) -> Result<Switched> {
    let clients = CLIENTS.lock();
    let of = clients.iter().find(|(client, _)| client.as_ptr() == Arc::as_ptr(&locks.client));
    of.map(|(_, switched)| switched.clone()).ok_or_else(|| {
        Error::new(ErrorKind::Misuse, "only a client of `testing::paused` or `testing::over` has outages")
    })
}

#[derive(Clone, Debug)]
struct Switched {
    store: Arc<dyn Backend>,
    /// How many outages there are now.
    away: Arc<watch::Sender<u32>>,
}

impl Layer for Switched {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if *self.away.borrow() > 0 {
            return Err(away().unsent());
        }
        if verb != "wait" {
            return call.await;
        }
        tokio::select! {
            biased;
            // The sender is here: this ends with an outage only.
            _ = async { self.away.subscribe().wait_for(|count| *count > 0).await.is_ok() } => Err(away()),
            woken = call => woken,
        }
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is away, by a test's wish")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::retry::Retry;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_holds_and_fails_acquires_while_it_lasts() {
        let locks = paused().unwrap();
        let lock = locks.mutex("n").unwrap().retry(Retry::default().errors(0));
        let guard = lock.acquire().await.unwrap();
        let short = outage(&locks).unwrap();
        tokio::time::sleep(SECOND * 15).await;
        drop(short);
        tokio::time::sleep(SECOND * 30).await;
        assert!(guard.is_held(), "renewed after a short outage");
        let long = outage(&locks).unwrap();
        assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(guard.lost().await, LossReason::Expired);
        let theirs = tokio::time::timeout(SECOND * 60, async {
            loop {
                match hold_elsewhere(&locks, "n").await {
                    Ok(guard) => break guard,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
                }
                tokio::time::sleep(SECOND).await;
            }
        });
        let theirs = theirs.await.unwrap();
        assert_eq!(locks.inspect("n").await.unwrap_err().kind(), ErrorKind::Unavailable);
        drop(long);
        assert_eq!(locks.inspect("n").await.unwrap().holders[0].note, "elsewhere");
        theirs.release().await.unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_guard_says_why() {
        let locks = paused().unwrap();
        for reason in [LossReason::Expired, LossReason::MaxHold, LossReason::Closed, LossReason::NotHeld] {
            let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
            lose(&guard, reason);
            assert_eq!((guard.loss(), guard.lost().await), (Some(reason), reason));
            assert_eq!(guard.token().unwrap_err().loss(), Some(reason));
            let free = tokio::time::timeout(SECOND, locks.mutex("n").unwrap().acquire()).await;
            assert_eq!(free.is_ok(), reason == LossReason::NotHeld, "{reason}");
            drop(guard);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_store_has_lost_keeps_no_least_time() {
        let locks = paused().unwrap();
        let guard = locks.mutex("n").unwrap().at_least(SECOND * 60).unwrap().acquire().await.unwrap();
        lose(&guard, LossReason::NotHeld);
        assert!(locks.mutex("n").unwrap().acquire_timeout(SECOND).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn time_that_goes_on_and_other_clients_are_refused() {
        assert_eq!(paused().unwrap_err().kind(), ErrorKind::Misuse);
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
        let locks = Locks::builder(store).clock(clock).build().unwrap();
        assert_eq!(outage(&locks).unwrap_err().kind(), ErrorKind::Misuse);
        hold_elsewhere(&locks, "n").await.unwrap().release().await.unwrap();
    }
}
