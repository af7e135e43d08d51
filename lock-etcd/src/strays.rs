//! Joins with an unclear outcome. A request may reach the store long after it was given up, and make an entry that
//! nobody knows on a lease that others keep alive.
//!
//! The lease is closed to new entries, so it ends when its living entries have left; until then the keys of such joins
//! are looked for again and again, and taken out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, HolderId, HolderMap, Result, Timestamp};

use crate::backend::{SWEEP, Shared};
use crate::entries::delete_on;
use crate::lease::Lease;
use crate::lines::{look_op, read_many};

/// The longest pause between two looks for a stray.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An entry that may come to be.
#[derive(Debug)]
struct Stray {
    key: Vec<u8>,
    /// Where it may come to be. Not kept by this: a lease that ends takes the entry with it.
    leases: Vec<Weak<Lease>>,
    due: Timestamp,
    pause: Duration,
    /// Whether it is being taken out now.
    taken_out: bool,
}

impl Stray {
    fn leases(&self) -> Vec<Arc<Lease>> {
        self.leases.iter().filter_map(Weak::upgrade).filter(|lease| !lease.is_gone()).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Strays(Mutex<HolderMap<Stray>>);

impl Strays {
    fn lock(&self) -> MutexGuard<'_, HolderMap<Stray>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn contains(&self, holder: HolderId) -> bool {
        self.lock().contains_key(&holder)
    }

    /// For a join that asks for the entry again: from now on it is not looked for. The leases it may come to be on.
    pub(crate) fn claim(&self, holder: HolderId) -> Result<Vec<Arc<Lease>>> {
        let mut map = self.lock();
        if map.get(&holder).is_some_and(|stray| stray.taken_out) {
            return Err(taken_back());
        }
        Ok(map.remove(&holder).map(|stray| stray.leases()).unwrap_or_default())
    }

    fn put(&self, holder: HolderId, key: Vec<u8>, leases: &[Arc<Lease>], now: Timestamp) {
        let leases = leases.iter().map(Arc::downgrade).collect();
        self.lock().insert(holder, Stray { key, leases, due: now, pause: SWEEP, taken_out: false });
    }

    /// Those to look for now, none of them a living entry's.
    fn due(
        &self,
        now: Timestamp,
        lives: impl Fn(HolderId) -> bool,
    ) -> Vec<(HolderId, Vec<u8>, HashSet<i64>)> {
        let mut map = self.lock();
        map.retain(|_, stray| stray.taken_out || !stray.leases().is_empty());
        let mut due = Vec::new();
        for (holder, stray) in map.iter_mut().filter(|(_, stray)| stray.due <= now && !stray.taken_out) {
            if !lives(*holder) {
                stray.taken_out = true;
                let leases = stray.leases().iter().map(|lease| lease.id).collect();
                due.push((*holder, stray.key.clone(), leases));
            }
        }
        due
    }

    fn looked_for(&self, holder: HolderId, now: Timestamp) {
        if let Some(stray) = self.lock().get_mut(&holder) {
            stray.taken_out = false;
            stray.due = now + stray.pause;
            stray.pause = (stray.pause * 2).min(LONGEST_PAUSE);
        }
    }
}

pub(crate) fn taken_back() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier try of this acquisition is being taken back").unsent()
}

impl Shared {
    /// Looks for the strays that are due, and takes out those that have come.
    pub(crate) async fn take_out_strays(&self) {
        let due = self.strays.due(self.clock.now(), |holder| self.entries.contains(holder));
        let reads: Vec<_> = due.iter().map(|(_, key, _)| look_op(key)).collect();
        let answers = read_many(&self.members, &reads).await;
        for ((holder, key, leases), answer) in due.into_iter().zip(answers) {
            let found = answer.ok().and_then(|range| range.kvs.into_iter().next());
            if let Some(kv) = found.filter(|kv| kv.key == key && leases.contains(&kv.lease)) {
                // One that could not be taken out is looked for again.
                let _ = delete_on(&self.members, &key, kv.create_revision, kv.lease).await;
            }
            self.strays.looked_for(holder, self.clock.now());
        }
    }
}

/// The tries of one join. Unless every one of them was answered clearly, its drop makes a stray of the entry.
pub(crate) struct Attempts<'a> {
    shared: &'a Shared,
    holder: HolderId,
    key: &'a [u8],
    /// On which an entry may come to be. They live as long as the join: an earlier try's entry may be found.
    leases: Vec<Arc<Lease>>,
    unclear: bool,
    under_way: bool,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(shared: &'a Shared, holder: HolderId, key: &'a [u8]) -> Result<Self> {
        let leases = shared.strays.claim(holder)?;
        let unclear = !leases.is_empty();
        Ok(Self { shared, holder, key, leases, unclear, under_way: false })
    }

    /// A try is sent that may put the entry on one of these leases.
    pub(crate) fn begins(&mut self, leases: [&Arc<Lease>; 2]) {
        self.under_way = true;
        for lease in leases {
            if self.leases.iter().all(|known| known.id != lease.id) {
                self.leases.push(Arc::clone(lease));
            }
        }
    }

    /// The try has ended.
    pub(crate) fn ends(&mut self, unclear: bool) {
        self.under_way = false;
        if unclear {
            self.unclear = true;
            self.close();
        }
    }

    fn close(&self) {
        self.leases.iter().for_each(|lease| lease.close());
        self.shared.leases.forget_unused();
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if self.unclear || self.under_way {
            self.close();
            let now = self.shared.clock.now();
            self.shared.strays.put(self.holder, self.key.to_vec(), &self.leases, now);
            self.shared.entries.some.notify_one();
        }
    }
}
