//! The entries this client has in the store: on which lease each one is, and until when it was renewed.
//!
//! A lease is shared, so an entry that nobody renews any more would live on with the others. The client that keeps the
//! lease alive therefore also takes out its own entries when their time has passed; when it does not run, it keeps
//! nothing alive either, and the store ends them all.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use onelock_core::{HolderId, HolderMap, Result, Timestamp};
use tokio::sync::Notify;

use crate::lease::Lease;
use crate::lines::kv;
use crate::members::Members;

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) number: i64,
    /// Every lease that its key is on, or can come to be on by a put that was sent, in the order of the puts. A lease
    /// leaves this list only when it is gone in the store; and a key never returns to a lease that it has left.
    pub(crate) leases: Vec<Arc<Lease>>,
    /// Whether it is known to hold. Once it holds it always does: whoever joins later stands behind it.
    pub(crate) held: bool,
    /// An entry ahead that keeps it waiting.
    pub(crate) blocker: Option<Arc<Blocker>>,
    /// When its lease and lock-delay have passed since the last answer about it.
    pub(crate) ends: Timestamp,
}

/// An entry during whose life another one cannot hold.
#[derive(Debug)]
pub(crate) struct Blocker {
    pub(crate) key: Vec<u8>,
    pub(crate) number: i64,
}

/// The entries of a client.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    map: Mutex<HolderMap<Entry>>,
    /// Told when there is an entry again.
    pub(crate) some: Notify,
}

impl Entries {
    fn lock(&self) -> MutexGuard<'_, HolderMap<Entry>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, holder: HolderId) -> bool {
        self.lock().contains_key(&holder)
    }

    pub(crate) fn get(&self, holder: HolderId) -> Option<Entry> {
        self.lock().get(&holder).cloned()
    }

    pub(crate) fn put(&self, holder: HolderId, entry: Entry) {
        let mut map = self.lock();
        let first = map.is_empty();
        map.insert(holder, entry);
        drop(map);
        if first {
            self.some.notify_one();
        }
    }

    /// Changes an entry that is still there; whether it was.
    pub(crate) fn change(&self, holder: HolderId, number: i64, change: impl FnOnce(&mut Entry)) -> bool {
        let mut map = self.lock();
        let entry = map.get_mut(&holder).filter(|entry| entry.number == number);
        entry.map(change).is_some()
    }

    pub(crate) fn remove(&self, holder: HolderId) -> Option<Entry> {
        self.lock().remove(&holder)
    }

    /// Forgets the entry with this number.
    pub(crate) fn forget(&self, holder: HolderId, number: i64) {
        let mut map = self.lock();
        if map.get(&holder).is_some_and(|entry| entry.number == number) {
            map.remove(&holder);
        }
    }

    /// Notes that an entry, known by its number, holds.
    pub(crate) fn holds(&self, holder: HolderId, number: i64) {
        self.change(holder, number, |entry| entry.held = true);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The entries whose time has passed at `now`.
    pub(crate) fn lapsed(&self, now: Timestamp) -> Vec<(HolderId, Entry)> {
        let map = self.lock();
        map.iter().filter(|(_, e)| e.ends <= now).map(|(holder, e)| (*holder, e.clone())).collect()
    }

    /// Forgets all; the leases they may be on.
    pub(crate) fn take_all(&self) -> HashSet<i64> {
        self.lock().drain().flat_map(|(_, entry)| entry.leases).map(|lease| lease.id).collect()
    }
}

/// Takes an entry out of the store if it is still ours: of this number and on a lease of ours, because another client may
/// have resumed it.
pub(crate) async fn take_out(members: &Members, entry: &Entry) -> Result<()> {
    // In the order of the puts: one that comes late cannot carry the key past this.
    for lease in entry.leases.iter().filter(|lease| !lease.is_gone()) {
        if delete_on(members, &entry.key, entry.number, lease.id).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Deletes an entry if it is on this lease; whether it was.
pub(crate) async fn delete_on(members: &Members, key: &[u8], number: i64, lease: i64) -> Result<bool> {
    let call = |client: Arc<Client>| {
        let ours = [
            Compare::create_revision(key, CompareOp::Equal, number),
            Compare::lease(key, CompareOp::Equal, lease),
        ];
        let txn = Txn::new().when(ours).and_then([TxnOp::delete(key, None)]);
        async move { kv(&client).txn(txn).await }
    };
    Ok(members.request(call).await?.succeeded())
}

/// When an entry ends that was answered for at `now`.
pub(crate) fn ends(now: Timestamp, lease: &Lease, delay: Duration) -> Timestamp {
    now + lease.lasts(delay) + delay
}
