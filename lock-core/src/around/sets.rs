//! Several locks at once, without deadlock: sets take their locks in the order of the names.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::client::Locks;
use crate::client::guard::{Guard, LossReason};
use crate::client::lock::Lock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// Several locks that are acquired together: all of them, or none.
///
/// Two sets never wait for each other in a circle, because each takes its locks in the order of their names. A set and
/// single locks can: take every lock of a task by one set.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let clock = std::sync::Arc::new(onelock::BootClock);
/// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
/// # let locks = onelock::Locks::builder(store).build()?;
/// let both = locks.all(["account/7", "account/3"])?.acquire_timeout(Duration::from_secs(5)).await?;
/// let both = both.expect("nobody else holds them");
/// let moved = both.run(async { "moved" }).await?; // stopped when any of them is lost
/// assert!(both.token("account/3")?.get() > 0);
/// both.release().await?;
/// # assert_eq!(moved, "moved");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a set does nothing until it is acquired"]
pub struct LockSet {
    /// At least one, in the order of their names, each name once.
    locks: Vec<Lock>,
}

/// Several held locks. Dropping it gives all of them back in the background.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    /// In the order of their names.
    guards: Vec<Guard>,
}

/// The most locks of a set.
pub const MOST_LOCKS: usize = 255;

impl Locks {
    /// The exclusive locks of `names`, to be acquired together. A name that is given twice counts once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::InvalidConfig`] for no name, or for more than [`MOST_LOCKS`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let set = locks.all(["accounts/7", "accounts/3"])?;
    /// let guards = set.acquire().await?; // every client takes them in one order
    /// guards.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all<I>(&self, names: I) -> Result<LockSet>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let names: BTreeSet<_> = names.into_iter().map(LockName::new).collect::<Result<_>>()?;
        self.all_of(names.iter().map(|name| self.mutex(name)).collect::<Result<Vec<_>>>()?)
    }

    /// Locks of any mode and with any options, to be acquired together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for no lock, for more than [`MOST_LOCKS`], or for two of one name;
    /// [`ErrorKind::Misuse`] for a lock of another client.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let (orders, rates) = (locks.mutex("orders")?, locks.rwlock("rates")?.read());
    /// locks.all_of([orders, rates])?.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_of(&self, locks: impl IntoIterator<Item = Lock>) -> Result<LockSet> {
        let mut sorted = BTreeMap::new();
        for lock in locks {
            if !Arc::ptr_eq(&lock.client, &self.client) {
                let text = format!("the lock `{}` is of another client than the set", lock.name());
                return Err(Error::new(ErrorKind::Misuse, text));
            }
            if let Some(twice) = sorted.insert(lock.name().clone(), lock) {
                let text = format!("the lock `{}` is twice in one set", twice.name());
                return Err(Error::new(ErrorKind::InvalidConfig, text));
            }
        }
        if (1..=MOST_LOCKS).contains(&sorted.len()) {
            return Ok(LockSet { locks: sorted.into_values().collect() });
        }
        let text = format!("a set has 1 to {MOST_LOCKS} locks, not {}", sorted.len());
        Err(Error::new(ErrorKind::InvalidConfig, text))
    }
}

impl LockSet {
    /// The locks, in the order in which they are taken.
    pub fn locks(&self) -> &[Lock] {
        &self.locks
    }

    /// The lease of each lock. With `n` locks the first one is renewed while the others are waited for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    pub fn ttl(self, ttl: Duration) -> Result<Self> {
        let locks: Result<_> = self.locks.into_iter().map(|lock| lock.ttl(ttl)).collect();
        Ok(Self { locks: locks? })
    }

    /// Acquires all, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; [`ErrorKind::Lost`] when one was lost while another was waited for. Nothing is held then.
    ///
    /// # Cancel safety
    /// Dropping the future gives back in the background what was taken.
    pub async fn acquire(&self) -> Result<GuardSet> {
        let mut taken = PartialSet(GuardSet { guards: Vec::new() });
        for lock in &self.locks {
            let guard = taken.0.run(lock.acquire()).await??;
            taken.0.guards.push(guard);
        }
        Ok(taken.completed())
    }

    /// Acquires all if each is free at once; `None` when one is busy: then nothing is held.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`LockSet::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<GuardSet>> {
        self.acquire_timeout(Duration::ZERO).await
    }

    /// Acquires all, waiting at most `timeout` in sum; `None` when that is over: then nothing is held. A `timeout` of zero is
    /// one try of each.
    ///
    /// # Errors
    /// As [`Lock::acquire_timeout`]; [`ErrorKind::Lost`] when one was lost while another was waited for.
    ///
    /// # Cancel safety
    /// As [`LockSet::acquire`].
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<GuardSet>> {
        let mut taken = PartialSet(GuardSet { guards: Vec::new() });
        let clock = &self.locks[0].client.clock;
        let until = clock.now() + timeout;
        for lock in &self.locks {
            let acquire = lock.acquire_timeout(until.saturating_since(clock.now()));
            let Some(guard) = taken.0.run(acquire).await?? else { return Ok(None) };
            taken.0.guards.push(guard);
        }
        Ok(Some(taken.completed()))
    }
}

/// What a set has while it takes the others: all of it goes back, and at once, unless it is completed.
struct PartialSet(GuardSet);

impl PartialSet {
    fn completed(mut self) -> GuardSet {
        GuardSet { guards: std::mem::take(&mut self.0.guards) }
    }
}

impl Drop for PartialSet {
    fn drop(&mut self) {
        // No work has run under them, so no least time is kept.
        self.0.guards.drain(..).for_each(Guard::give_back_unused);
    }
}

impl GuardSet {
    /// The guards, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all are held now. Once false it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// How long all may be believed in yet if no renewal comes; zero once one is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// The fencing token of one lock.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] once any lock of the set is lost; [`ErrorKind::Misuse`] for a name that is not in the set;
    /// [`ErrorKind::Unsupported`] on a store whose numbers protect nothing.
    pub fn token(&self, name: impl AsRef<str>) -> Result<FencingToken> {
        let name = name.as_ref();
        let Some(guard) = self.guards.iter().find(|guard| guard.name().as_str() == name) else {
            return Err(Error::new(ErrorKind::Misuse, format!("`{name}` is not in this set")));
        };
        self.guards.iter().try_for_each(Guard::check)?;
        guard.token()
    }

    /// Waits until one of the locks is lost, and says which and why.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let (guard, reason) = self.first_lost().await;
        (guard.name().clone(), reason)
    }

    async fn first_lost(&self) -> (&Guard, LossReason) {
        let mut losses: Vec<_> = self.guards.iter().map(|guard| (guard, Box::pin(guard.lost()))).collect();
        poll_fn(|context| {
            for (guard, loss) in &mut losses {
                if let Poll::Ready(reason) = loss.as_mut().poll(context) {
                    return Poll::Ready((*guard, reason));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Runs `work` while all are held, and drops it at its next await when one is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], naming the lock, when the work was stopped, or not begun.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            (guard, reason) = self.first_lost() => Err(guard.lost_error(reason)),
            done = work => Ok(done),
        }
    }

    /// Gives all back, at the same time, and waits until the store says so.
    ///
    /// # Errors
    /// As [`Guard::release`], for the first lock in the order of names whose release failed; the others are given back.
    ///
    /// # Cancel safety
    /// The releases go on in the background.
    pub async fn release(self) -> Result<()> {
        let mut releases: Vec<_> =
            self.guards.into_iter().map(|guard| Some(Box::pin(guard.release()))).collect();
        let mut answers: Vec<Result<()>> = releases.iter().map(|_| Ok(())).collect();
        poll_fn(|context| {
            for (release, answer) in releases.iter_mut().zip(&mut answers) {
                let Some(under_way) = release else { continue };
                if let Poll::Ready(done) = Pin::as_mut(under_way).poll(context) {
                    (*answer, *release) = (done, None);
                }
            }
            if releases.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        answers.into_iter().collect()
    }
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
