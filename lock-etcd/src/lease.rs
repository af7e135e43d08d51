//! Leases: one per length for the whole client, shared by every entry of that length.
//!
//! An entry must last at least its lease from the moment it joins, but the lease it joins may have been kept alive a
//! while ago. So an etcd lease is a [`slack`] longer than what its entries ask for, and before an entry relies on it the
//! lease must have been kept alive less than half the slack ago, or is kept alive now. The other half is for clocks
//! that run at different rates.
//!
//! A lease is *closed* when the outcome of a join on it is unclear: no new entry joins it. Its living entries stay, and
//! keep it alive; what the join may still put on it is taken out ([`crate::release`]). No lease is revoked but those of a
//! client that closes, and of these only the ones that no living entry can be on: a lease that nobody keeps alive ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Client, LeaseTimeToLiveOptions};
use futures_util::future::join_all;
use onelock_core::toolkit::{Flights, Mutex, SingleFlight};
use onelock_core::{Clock, Error, ErrorKind, Result, Timestamp};

use crate::client::{Cluster, runtime_gone};
use crate::error::{Failure, protocol};

/// How much longer the etcd lease is for entries that last so long: a tenth, from 1 to 10 seconds.
fn slack(seconds: u64) -> Duration {
    (Duration::from_secs(seconds) / 10).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// One lease of the store.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The length it was asked for, in seconds, without the slack.
    asked: u64,
    /// What the store gave, which may be more.
    pub(crate) granted: Duration,
    /// The moment before the last request that the store answered with a living lease; `None` once it has none.
    kept: Mutex<Option<Timestamp>>,
    /// The request that keeps it alive, shared by those who ask meanwhile.
    asking: SingleFlight<Result<()>>,
    closed: AtomicBool,
}

impl Lease {
    /// How long an entry with this lock-delay lasts on it, the delay not counted.
    pub(crate) fn lasts(&self, delay: Duration) -> Duration {
        self.granted.saturating_sub(slack(self.asked) + delay)
    }

    /// Whether it has ended, as far as this client knows.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.kept.lock().is_none_or(|kept| now.saturating_since(kept) >= self.granted)
    }

    /// No new entry joins it: see the top of this file.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the store has said that it has no such lease.
    pub(crate) fn is_gone(&self) -> bool {
        self.kept.lock().is_none()
    }

    /// The store has said that it has no such lease.
    pub(crate) fn lost(&self) {
        *self.kept.lock() = None;
    }
}

/// The leases of a client.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    /// Every lease that may still live.
    all: Mutex<Vec<Arc<Lease>>>,
    /// New ones under way, by their lengths.
    making: Flights<u64, Result<Arc<Lease>>>,
}

impl Leases {
    pub(crate) fn new(cluster: Arc<Cluster>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { cluster, clock, all: Mutex::default(), making: Flights::default() })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The lease of this length that new entries join.
    fn current(&self, seconds: u64) -> Option<Arc<Lease>> {
        let now = self.now();
        let open = |lease: &&Arc<Lease>| {
            lease.asked == seconds && !lease.closed.load(Ordering::Acquire) && !lease.is_over(now)
        };
        self.all.lock().iter().find(open).map(Arc::clone)
    }

    /// The lease that entries of this lease and lock-delay join now.
    pub(crate) async fn get(self: &Arc<Self>, lease: Duration, delay: Duration) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(lease.saturating_add(delay))?;
        if let Some(lease) = self.current(seconds) {
            return Ok(lease);
        }
        let (making, leases) = (self.making.of(seconds), Arc::clone(self));
        let made = making.join(&self.cluster.runtime, || async move { leases.grant(seconds).await }).await;
        made.unwrap_or_else(|| Err(runtime_gone()))
    }

    async fn grant(&self, asked: u64) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(Duration::from_secs(asked) + slack(asked))?;
        let ttl = i64::try_from(seconds).map_err(|_| protocol("a lease too long for etcd"))?;
        // From before the first try: an answer to any of them is younger.
        let sent = self.now();
        let call = |client: Arc<Client>| async move { client.lease_client().grant(ttl, None).await };
        let answer = self.cluster.request(&mut false, call).await?;
        let granted = u64::try_from(answer.ttl()).unwrap_or(0);
        if granted < seconds {
            return Err(protocol("etcd gave a shorter lease than it was asked for"));
        }
        let lease = Arc::new(Lease {
            id: answer.id(),
            asked,
            granted: Duration::from_secs(granted),
            kept: Mutex::new(Some(sent)),
            asking: SingleFlight::default(),
            closed: AtomicBool::new(false),
        });
        let now = self.now();
        let mut all = self.all.lock();
        all.retain(|lease| !lease.is_over(now));
        all.push(Arc::clone(&lease));
        Ok(lease)
    }

    /// Keeps a lease alive unless it was lately.
    pub(crate) async fn refresh(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<()> {
        self.keep_alive(lease, self.now() - slack(lease.asked) / 2).await
    }

    /// Sees that a lease was kept alive by a round trip that began at this moment or later, or is gone.
    pub(crate) async fn keep_alive(self: &Arc<Self>, lease: &Arc<Lease>, since: Timestamp) -> Result<()> {
        while lease.kept.lock().is_some_and(|kept| kept < since) {
            let asked = lease.asking.join(&self.cluster.runtime, || {
                let (leases, lease) = (Arc::clone(self), Arc::clone(lease));
                async move { leases.ask(&lease).await }
            });
            asked.await.unwrap_or_else(|| Err(runtime_gone()))?;
        }
        Ok(())
    }

    /// Asks the store to keep a lease alive, on a stream of its own: opening it costs nothing more, and no late answer can be
    /// taken for that of another.
    async fn ask(&self, lease: &Lease) -> Result<()> {
        let (id, sent) = (lease.id, self.now());
        let call = |client: Arc<Client>| async move { client.lease_client().keep_alive(id).await };
        match self.cluster.request(&mut false, call).await {
            Ok(_) => {
                let mut kept = lease.kept.lock();
                *kept = kept.map(|kept| sent.max(kept));
                Ok(())
            }
            Err(Failure::LeaseGone) => {
                lease.lost();
                Ok(())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// The keys on each lease that lives; none where the store does not say.
    pub(crate) async fn keys(&self) -> Vec<(Arc<Lease>, Vec<Vec<u8>>)> {
        let (now, mut living) = (self.now(), self.all.lock().clone());
        living.retain(|lease| !lease.is_over(now));
        let keys = |lease: Arc<Lease>| async move {
            let id = lease.id;
            let call = |client: Arc<Client>| async move {
                let with_keys = LeaseTimeToLiveOptions::new().with_keys();
                client.lease_client().time_to_live(id, Some(with_keys)).await
            };
            let answer = self.cluster.request(&mut false, call).await;
            (lease, answer.map_or_else(|_| Vec::new(), |answer| answer.0.keys))
        };
        join_all(living.into_iter().map(keys)).await
    }

    /// Gives back every lease but these.
    pub(crate) async fn revoke_but(&self, in_use: &[i64]) -> Result<()> {
        let all = std::mem::take(&mut *self.all.lock());
        let now = self.now();
        let idle = all.iter().filter(|lease| !lease.is_over(now) && !in_use.contains(&lease.id));
        let revoke = |id| async move {
            let call = |client: Arc<Client>| async move { client.lease_client().revoke(id).await };
            match self.cluster.request(&mut false, call).await {
                Ok(_) | Err(Failure::LeaseGone) => Ok(()),
                Err(failure) => Err(failure.into()),
            }
        };
        join_all(idle.map(|lease| revoke(lease.id))).await.into_iter().collect()
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
