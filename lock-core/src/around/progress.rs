//! An acquisition that tells where it stands in the line.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::client::guard::Guard;
use crate::client::lock::Lock;
use crate::client::progress::Progress;
use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::EntryView;

/// How often a store is asked about a line: a tenth of the ttl, within these.
const ASK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How often a store is asked about a line whose entries have this lease.
pub(crate) fn ask_every(lease: Duration) -> Duration {
    (lease / 10).clamp(ASK.0, ASK.1)
}

/// Where a waiting acquisition stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Position {
    /// How many entries are ahead, holders among them; the holders alone where a server does not list its waiters.
    pub ahead: usize,
    /// Who holds now.
    pub holders: Vec<EntryView>,
    /// How long it has waited.
    pub waited: Duration,
}

pub(crate) type Tell<'a> = Box<dyn FnMut(&Position) + Send + 'a>;

/// The future of [`Lock::acquire`].
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<'a> {
    lock: &'a Lock,
    call: Pin<Box<dyn Future<Output = Result<Guard>> + Send + 'a>>,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(lock: &'a Lock, tell: Option<Tell<'a>>) -> Self {
        Self { lock, call: Box::pin(acquire(lock, tell)) }
    }

    /// Calls `tell` with the place in the line while it waits: first when others are known to be ahead, then after changes. The
    /// store is asked for it every tenth of the ttl, at most ten times a second and at least once; without this call at most once, for
    /// an observer. While it cannot answer, there is no call. To be called before the first poll: what was begun is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let clock = std::sync::Arc::new(onelock::BootClock);
    /// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
    /// # let locks = onelock::Locks::builder(store).build()?;
    /// let lock = locks.mutex("orders/42")?;
    /// let guard = lock.acquire().progress(|p| eprintln!("{} ahead", p.ahead)).await?;
    /// # guard.release().await
    /// # }
    /// ```
    pub fn progress(self, tell: impl FnMut(&Position) + Send + 'a) -> Self {
        Self::new(self.lock, Some(Box::new(tell)))
    }
}

impl Future for Acquire<'_> {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(context)
    }
}

async fn acquire(lock: &Lock, tell: Option<Tell<'_>>) -> Result<Guard> {
    let guard = lock.watched(None, tell).await?;
    guard.ok_or_else(|| Error::new(ErrorKind::Busy, "it ended without a lock"))
}

/// Reports the place of an entry behind others, until it is dropped or the client's runtime has ended.
pub(crate) async fn telling(lock: &Lock, progress: &Progress, began: Timestamp, mut tell: Tell<'_>) {
    let (client, mut last) = (&lock.client, None);
    loop {
        if let Ok((ahead, holders)) = progress.look(client, lock.name()).await {
            let now = Some((ahead, holders.iter().map(|holder| holder.token).collect::<Vec<_>>()));
            // None ahead: it holds, and is about to learn that.
            if ahead > 0 && now != last {
                let waited = client.clock.now().saturating_since(began);
                tell(&Position { ahead, holders, waited });
                last = now;
            }
        }
        if !client.sleep(ask_every(lock.terms.upkeep.lease)).await {
            return;
        }
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("name", self.lock.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::client::Locks;
    use crate::clock::{Clock, TokioClock};
    use crate::memory::{MemoryBackend, MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn a_waiter_sees_itself_move_up() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
        let locks = Locks::builder(store).clock(clock).build().unwrap();
        let lock = locks.mutex("n").unwrap();
        let mut ahead = vec![tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        })];
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let lock = lock.clone();
            ahead.push(tokio::spawn(async move { lock.acquire().await }));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let last = tokio::spawn({
            let (lock, seen) = (lock.clone(), Arc::clone(&seen));
            async move {
                let tell = |p: &Position| seen.lock().unwrap().push((p.ahead, p.holders[0].token, p.waited));
                lock.acquire().progress(tell).await
            }
        });
        let mut tokens = Vec::new();
        for guard in ahead {
            let guard = guard.await.unwrap().unwrap();
            tokens.push(guard.token().unwrap());
            tokio::time::sleep(Duration::from_secs(5)).await;
            guard.release().await.unwrap();
        }
        last.await.unwrap().unwrap().release().await.unwrap();
        let seen = seen.lock().unwrap().clone();
        let places: Vec<_> = seen.iter().map(|(ahead, holder, _)| (*ahead, *holder)).collect();
        assert_eq!(places, [(3, tokens[0]), (2, tokens[1]), (1, tokens[2])]);
        assert!(seen[2].2 > Duration::from_secs(9), "{seen:?}");
    }

    /// It has no entry of its own.
    #[tokio::test(start_paused = true)]
    async fn who_shares_an_acquisition_of_its_owner_sees_its_place() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
        let locks = Locks::builder(store).clock(clock).build().unwrap();
        let held = locks.mutex("n").unwrap().acquire().await.unwrap();
        let lock = locks.mutex("n").unwrap().owner(&locks.owner()).unwrap();
        let mut seen = Vec::new();
        let (first, second, ()) =
            tokio::join!(lock.acquire(), lock.acquire().progress(|p| seen.push(p.ahead)), async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                held.release().await.unwrap();
            });
        drop((first.unwrap(), second.unwrap()));
        assert_eq!(seen, [1], "the holder");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_holds_at_once_is_told_nothing() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
        let locks = Locks::builder(store).clock(clock).build().unwrap();
        let lock = locks.mutex("n").unwrap();
        lock.acquire().progress(|_| panic!("nobody is ahead")).await.unwrap().release().await.unwrap();
    }
}
