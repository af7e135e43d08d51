//! Leases: one per length for the whole client, shared by every entry of that length.
//!
//! An entry must last at least its lease from the moment it joins, but the lease it joins may have been kept alive a
//! while ago. So an etcd lease is a [`slack`] longer than what its entries ask for, and before an entry relies on it the
//! lease must have been kept alive less than half the slack ago, or is kept alive now. The other half is for clocks
//! that run at different rates.
//!
//! A lease is *closed* when the outcome of a join on it is unclear: no new entry joins it. Its living entries stay, and
//! keep it alive; what the join may still put on it is taken out by [`crate::strays`]. A closed lease is revoked when
//! nothing refers to it any more. Every entry refers to each lease that its key is on or can come to be on by a put that
//! was sent ([`Entry::leases`](crate::entries::Entry::leases)), so no key of a living entry is on a revoked lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{Client, Error as Etcd};
use onelock_core::flight::SingleFlight;
use onelock_core::{Clock, Error, ErrorKind, Result, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error::{Failure, protocol};
use crate::members::{Members, runtime_gone};

/// How much longer the etcd lease is for entries that last `time`: a tenth, from 1 to 10 seconds.
fn slack(time: Duration) -> Duration {
    (time / 10).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// One lease of the store.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// What the store gave, which may be more than was asked.
    granted: Duration,
    slack: Duration,
    /// The moment before the last request that the store answered with a living lease.
    kept: Mutex<Timestamp>,
    /// The request that keeps it alive, shared by those who ask meanwhile.
    asking: SingleFlight<Result<Life, Failure>>,
    closed: AtomicBool,
    gone: AtomicBool,
    /// Where the id goes when the lease is closed and nothing refers to it any more.
    spent: mpsc::UnboundedSender<i64>,
}

/// Whether a lease still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Kept,
    Gone,
}

impl Lease {
    /// How long an entry with this lock-delay lasts on it, the delay not counted.
    pub(crate) fn lasts(&self, delay: Duration) -> Duration {
        self.granted.saturating_sub(self.slack + delay)
    }

    fn kept(&self) -> MutexGuard<'_, Timestamp> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fresh(&self, now: Timestamp) -> bool {
        now.saturating_since(*self.kept()) < self.slack / 2
    }

    /// Whether new entries may join it.
    pub(crate) fn open(&self, now: Timestamp) -> bool {
        let usable = !self.closed.load(Ordering::Acquire) && !self.is_gone();
        usable && now.saturating_since(*self.kept()) < self.granted
    }

    /// No new entry joins it: see the top of this file.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn lost(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Keeps it alive: a round trip that begins after the call, shared by those who ask meanwhile.
    pub(crate) async fn keep_alive(self: &Arc<Self>, by: &Means) -> Result<Life> {
        let Means { members, clock, .. } = by;
        let begun = clock.now();
        let mut tries = members.tries();
        loop {
            let Some(limit) = tries.next().await else { return Err(members.late(members.try_time())) };
            let logins = members.logins();
            let answer = match timeout(limit, self.round(begun, limit, by)).await {
                Ok(answer) => answer,
                Err(_) => Err(members.late(limit).into()),
            };
            let failure = match answer {
                Ok(life) => return Ok(life),
                Err(Failure::LeaseGone) => {
                    self.lost();
                    return Ok(Life::Gone);
                }
                Err(failure) => failure,
            };
            let error = Error::from(members.settle(logins, limit, failure).await);
            if !error.is_retryable() || !tries.more() {
                return Err(error);
            }
        }
    }

    async fn round(self: &Arc<Self>, begun: Timestamp, limit: Duration, by: &Means) -> Result<Life, Failure> {
        let mut ours = false;
        loop {
            if self.is_gone() {
                return Ok(Life::Gone);
            }
            if *self.kept() > begun {
                return Ok(Life::Kept);
            }
            let asked = self.asking.join(&by.runtime, || {
                ours = true;
                let (lease, by) = (Arc::clone(self), by.clone());
                // With a limit of its own: those who come later must not wait for a request that nobody waits for any more.
                async move {
                    let late = |_| Err(by.members.late(limit).into());
                    timeout(limit, lease.ask(&by)).await.unwrap_or_else(late)
                }
            });
            match asked.await {
                // One that was sent before this call says nothing for it.
                Some(Ok(Life::Kept)) if !ours => {}
                Some(answer) => return answer,
                None => return Err(runtime_gone().into()),
            }
        }
    }

    /// Asks the store to keep it alive.
    async fn ask(&self, by: &Means) -> Result<Life, Failure> {
        let sent = by.clock.now();
        let (_, client) = by.members.client().await?;
        ask(client, self.id).await.map_err(|error| match error {
            // The driver's own word for a ttl of 0.
            Etcd::LeaseKeepAliveError(text) if text == "lease not found" => Failure::LeaseGone,
            error => by.members.failure(error),
        })?;
        let mut kept = self.kept();
        *kept = sent.max(*kept);
        Ok(Life::Kept)
    }
}

/// One sign of life, on a stream of its own: opening it costs nothing more, and no late answer can be taken for that of
/// another.
async fn ask(client: Arc<Client>, id: i64) -> Result<(), Etcd> {
    client.lease_client().keep_alive(id).await.map(|_| ())
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.closed.load(Ordering::Acquire) && !self.is_gone() {
            // A client that is going revokes nothing: the lease ends by itself.
            let _ = self.spent.send(self.id);
        }
    }
}

/// The leases of a client.
#[derive(Debug)]
pub(crate) struct Leases {
    by: Means,
    lengths: Mutex<HashMap<u64, Arc<Length>>>,
    /// Every lease that may still live, to be given back on close.
    all: Mutex<Vec<Weak<Lease>>>,
    spent: mpsc::UnboundedSender<i64>,
}

/// What leases are made and kept alive with.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    pub(crate) members: Arc<Members>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
}

/// The lease new entries of one length join.
#[derive(Debug, Default)]
struct Length {
    current: Mutex<Option<Arc<Lease>>>,
    /// A new one under way, so that one is made.
    making: SingleFlight<Result<Arc<Lease>>>,
}

impl Length {
    fn current(&self, now: Timestamp) -> Option<Arc<Lease>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|lease| lease.open(now)).map(Arc::clone)
    }

    fn set(&self, lease: &Arc<Lease>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(lease));
    }
}

impl Leases {
    /// No leases yet; those that are spent are told to the other end of `spent`.
    pub(crate) fn new(by: Means, spent: mpsc::UnboundedSender<i64>) -> Arc<Self> {
        Arc::new(Self { by, lengths: Mutex::default(), all: Mutex::default(), spent })
    }

    /// What they are made and kept alive with.
    pub(crate) fn means(&self) -> &Means {
        &self.by
    }

    /// The lease that entries of this lease and lock-delay join now.
    pub(crate) async fn get(self: &Arc<Self>, lease: Duration, delay: Duration) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(lease.saturating_add(delay))?;
        let length = {
            let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lengths.entry(seconds).or_default())
        };
        if let Some(lease) = length.current(self.by.clock.now()) {
            return Ok(lease);
        }
        let made = length.making.join(&self.by.runtime, || {
            let (leases, length) = (Arc::clone(self), Arc::clone(&length));
            async move {
                if let Some(lease) = length.current(leases.by.clock.now()) {
                    return Ok(lease);
                }
                let lease = leases.grant(seconds).await?;
                length.set(&lease);
                leases.forget_unused();
                Ok(lease)
            }
        });
        made.await.unwrap_or_else(|| Err(runtime_gone()))
    }

    async fn grant(&self, seconds: u64) -> Result<Arc<Lease>> {
        let slack = slack(Duration::from_secs(seconds));
        let seconds = whole_seconds(Duration::from_secs(seconds) + slack)?;
        let ttl = i64::try_from(seconds).map_err(|_| protocol("a lease too long for etcd"))?;
        // From before the first try: an answer to any of them is younger.
        let sent = self.by.clock.now();
        let call = |client: Arc<Client>| async move { client.lease_client().grant(ttl, None).await };
        let answer = self.by.members.request(call).await?;
        let granted = u64::try_from(answer.ttl()).unwrap_or(0);
        if granted < seconds {
            return Err(protocol("etcd gave a shorter lease than it was asked for"));
        }
        let lease = Arc::new(Lease {
            id: answer.id(),
            granted: Duration::from_secs(granted),
            slack,
            kept: Mutex::new(sent),
            asking: SingleFlight::default(),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            spent: self.spent.clone(),
        });
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|lease| lease.strong_count() > 0);
        all.push(Arc::downgrade(&lease));
        Ok(lease)
    }

    /// The lease with this id, if it is one of this client.
    pub(crate) fn by_id(&self, id: i64) -> Option<Arc<Lease>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find(|lease| lease.id == id)
    }

    /// Forgets lengths without a lease to join: theirs have ended in the store by themselves, or are closed.
    pub(crate) fn forget_unused(&self) {
        let now = self.by.clock.now();
        let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
        lengths.retain(|_, length| length.current(now).is_some() || length.making.is_under_way());
    }

    /// Every lease that may still be in the store, for a client that closes.
    pub(crate) fn take_all(&self) -> Vec<Arc<Lease>> {
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        let living = all.iter().filter_map(Weak::upgrade).filter(|lease| !lease.is_gone()).collect();
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).clear();
        living
    }
}

/// Rounded up: a lease is never shorter than asked.
fn whole_seconds(time: Duration) -> Result<u64> {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    // The longest lease etcd takes.
    if seconds > 9_000_000_000 {
        return Err(Error::new(ErrorKind::InvalidLease, "etcd has no lease that long"));
    }
    Ok(seconds)
}

/// Gives a lease back, with everything on it.
pub(crate) async fn revoke(members: &Members, id: i64) -> Result<()> {
    let call = |client: Arc<Client>| async move { client.lease_client().revoke(id).await };
    match members.request(call).await {
        Ok(_) | Err(Failure::LeaseGone) => Ok(()),
        Err(failure) => Err(Error::from(failure).during("revoke")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up() {
        let ms = Duration::from_millis;
        assert_eq!(whole_seconds(ms(3_000)).unwrap(), 3);
        assert_eq!(whole_seconds(ms(3_001)).unwrap(), 4);
        assert_eq!(whole_seconds(Duration::MAX).unwrap_err().kind(), ErrorKind::InvalidLease);
    }
}
