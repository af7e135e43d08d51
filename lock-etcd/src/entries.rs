//! The entries this client has in the store: on which lease each one is, and until when it was renewed.
//!
//! A lease is shared, so an entry that nobody renews any more would live on with the others. The client that keeps the
//! lease alive therefore also takes out its own entries when their time has passed; when it does not run, it keeps
//! nothing alive either, and the store ends them all.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use lock_core::{HolderId, HolderMap, Result, Timestamp};
use tokio::sync::Notify;

use crate::error::Failure;
use crate::lease::Lease;
use crate::lines::kv;
use crate::members::Members;

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) number: i64,
    pub(crate) lease: Arc<Lease>,
    /// Whether it is known to hold. Once it holds it always does: whoever joins later stands behind it.
    pub(crate) held: bool,
    /// When its lease and lock-delay have passed since the last answer about it.
    pub(crate) ends: Timestamp,
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

    /// Forgets all; the leases they were on.
    pub(crate) fn take_all(&self) -> HashSet<i64> {
        self.lock().drain().map(|(_, entry)| entry.lease.id).collect()
    }
}

/// Takes an entry out of the store if it is still ours: of this number and on our lease, because another client may
/// have resumed it.
pub(crate) async fn take_out(members: &Members, entry: &Entry) -> Result<()> {
    if entry.lease.is_gone() {
        return Ok(());
    }
    let call = |client: Arc<Client>| {
        let key = &entry.key[..];
        let ours = [
            Compare::create_revision(key, CompareOp::Equal, entry.number),
            Compare::lease(key, CompareOp::Equal, entry.lease.id),
        ];
        let txn = Txn::new().when(ours).and_then([TxnOp::delete(key, None)]);
        async move { kv(&client).txn(txn).await }
    };
    match members.request(call).await {
        Ok(_) | Err(Failure::LeaseGone) => Ok(()),
        Err(Failure::Other(error)) => Err(error),
    }
}

/// When an entry ends that was answered for at `now`.
pub(crate) fn ends(now: Timestamp, lease: &Lease, delay: Duration) -> Timestamp {
    now + lease.lasts(delay) + delay
}
