//! The entries of this client.
//!
//! A session keeps all its nodes alive as long as the process lives. A lease is about one entry: when nobody has renewed
//! it for its time, this client deletes its node, as a store with leases of its own would. The session is for the case
//! that this client cannot.
//!
//! An entry is here from before its node is asked for, so that what an answer that was lost has left is found again.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onelock_core::{FencingToken, HolderId, LockName, Timestamp};
use zookeeper_client as zk;

use crate::keys::Paths;
use crate::line::{Ahead, Stand};
use crate::sessions::Room;

pub(crate) type Key = (LockName, HolderId);

/// What a watch that is set will bring.
pub(crate) type Watch = Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>;

/// One entry of this client.
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) paths: Paths,
    pub(crate) room: Room,
    /// What a wait has set, kept for the next one: a wait is dropped and made anew at every renewal.
    pub(crate) watch: tokio::sync::Mutex<Option<Watch>>,
    state: Mutex<State>,
}

struct State {
    node: Option<Node>,
    /// When its lease ends, lock-delay included.
    ends: Timestamp,
    held: bool,
    gone: bool,
    /// What it waits for, with the transaction that had changed the line last then; nothing when the line is to be read.
    ahead: Option<(Ahead, i64)>,
}

/// The node of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) token: FencingToken,
    /// It was made with the node of the name, so that one may go with it.
    pub(crate) alone: bool,
}

impl Entry {
    pub(crate) fn new(key: Key, paths: Paths, room: Room, ends: Timestamp) -> Arc<Self> {
        let state = State { node: None, ends, held: false, gone: false, ahead: None };
        Arc::new(Self { key, paths, room, watch: tokio::sync::Mutex::default(), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its node, once that is known.
    pub(crate) fn node(&self) -> Option<Node> {
        self.lock().node.clone()
    }

    /// The name of its node, once that is known.
    pub(crate) fn child(&self) -> String {
        self.lock().node.as_ref().map(|node| self.paths.child(&node.path).to_owned()).unwrap_or_default()
    }

    /// Notes its node; `None` when that is deleted and another may be made.
    pub(crate) fn set_node(&self, node: Option<Node>) {
        self.lock().node = node;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lock().held
    }

    pub(crate) fn ahead(&self) -> Option<(Ahead, i64)> {
        self.lock().ahead.clone()
    }

    /// The line is to be read again.
    pub(crate) fn forget_ahead(&self) {
        self.lock().ahead = None;
    }

    /// Notes how it stands in a line that was changed last by this transaction; whether it was promoted and a permit that
    /// is right behind must be notified.
    pub(crate) fn stands(&self, stand: Stand, changed: i64) -> bool {
        let mut state = self.lock();
        match stand {
            Stand::Waits(ahead) => {
                state.ahead = Some((ahead, changed));
                false
            }
            Stand::Held { followed } => !std::mem::replace(&mut state.held, true) && followed,
        }
    }

    /// Begins its lease, which ends at `ends`; false when it is over already.
    pub(crate) fn begin(&self, ends: Timestamp) -> bool {
        let mut state = self.lock();
        state.ends = ends;
        !state.gone
    }

    /// Lets its lease end no earlier than `ends`; false when it is over already.
    pub(crate) fn keep_until(&self, ends: Timestamp) -> bool {
        let mut state = self.lock();
        state.ends = state.ends.max(ends);
        !state.gone
    }

    /// Ends it if its lease is over at `now`; whether it is over.
    fn end(&self, now: Timestamp) -> bool {
        let mut state = self.lock();
        state.gone |= state.ends <= now;
        state.gone
    }
}

/// All entries of a client.
#[derive(Default)]
pub(crate) struct Entries(Mutex<HashMap<Key, Arc<Entry>>>);

impl Entries {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry, unless its lease is over at `now`.
    pub(crate) fn get(&self, key: &Key, now: Timestamp) -> Option<Arc<Entry>> {
        let entry = self.lock().get(key).cloned()?;
        let state = entry.lock();
        let lives = state.ends > now && !state.gone;
        drop(state);
        lives.then_some(entry)
    }

    pub(crate) fn insert(&self, entry: &Arc<Entry>) {
        self.lock().insert(entry.key.clone(), Arc::clone(entry));
    }

    /// Forgets an entry.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        entry.lock().gone = true;
        let mut entries = self.lock();
        if entries.get(&entry.key).is_some_and(|other| Arc::ptr_eq(other, entry)) {
            entries.remove(&entry.key);
        }
    }

    /// Forgets all: their sessions end.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.values().for_each(|entry| entry.lock().gone = true);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Takes out the entries whose leases are over at `now`.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        self.lock().extract_if(|_, entry| entry.end(now)).map(|(_, entry)| entry).collect()
    }
}
