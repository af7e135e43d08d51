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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::clock::sleep_until;
use onelock_core::{Clock, FencingToken, HolderId, LockName, Timestamp};
use tokio::sync::Notify;
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
    watch: Option<Watch>,
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
        let state = State { node: None, ends, held: false, gone: false, ahead: None, watch: None };
        Arc::new(Self { key, paths, room, state: Mutex::new(state) })
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
            Stand::Held { followed } => {
                let watch = state.watch.take();
                let promoted = !std::mem::replace(&mut state.held, true);
                // A watch that is dropped tells its session: not under the lock.
                drop(state);
                drop(watch);
                promoted && followed
            }
        }
    }

    pub(crate) fn take_watch(&self) -> Option<Watch> {
        self.lock().watch.take()
    }

    pub(crate) fn put_watch(&self, watch: Watch) {
        let mut state = self.lock();
        let unused = if state.gone || state.held { Some(watch) } else { state.watch.replace(watch) };
        drop(state);
        drop(unused);
    }

    /// Begins its lease, which ends at `ends`; false when it is over already. [`Entries::insert`] makes that known.
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

    /// Ends it if its lease is over at `now`, or in any case; whether it is over.
    fn end(&self, now: Option<Timestamp>) -> bool {
        let mut state = self.lock();
        if now.is_some_and(|now| state.ends > now) {
            return state.gone;
        }
        state.gone = true;
        let watch = state.watch.take();
        drop(state);
        drop(watch);
        true
    }
}

/// All entries of a client.
#[derive(Default)]
pub(crate) struct Entries {
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
    /// When the next lease ends that is known to [`Entries::expired`].
    next: Mutex<Option<Timestamp>>,
    sooner: Notify,
    abandoned: AtomicBool,
    closed: AtomicBool,
}

impl Entries {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_next(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry, unless its lease is over at `now`.
    pub(crate) fn get(&self, key: &Key, now: Timestamp) -> Option<Arc<Entry>> {
        let entry = self.lock().get(key).cloned()?;
        let lives = {
            let state = entry.lock();
            state.ends > now && !state.gone
        };
        lives.then_some(entry)
    }

    pub(crate) fn insert(&self, entry: &Arc<Entry>) {
        let ends = entry.lock().ends;
        self.lock().insert(entry.key.clone(), Arc::clone(entry));
        if self.lock_next().is_none_or(|at| ends < at) {
            self.sooner.notify_one();
        }
    }

    /// Forgets an entry, and its watch.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        entry.end(None);
        let mut entries = self.lock();
        if entries.get(&entry.key).is_some_and(|other| Arc::ptr_eq(other, entry)) {
            entries.remove(&entry.key);
        }
    }

    /// The client is closed: its sessions end, and with them all entries.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.lock());
        all.values().for_each(|entry| _ = entry.end(None));
        self.abandon();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Nobody will renew anything any more: the last lease is the end.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.sooner.notify_one();
    }

    /// Waits until leases end, and takes those entries out; `None` when there are none and will be none.
    pub(crate) async fn expired(&self, clock: &Arc<dyn Clock>) -> Option<Vec<Arc<Entry>>> {
        loop {
            let now = clock.now();
            let over: Vec<_> =
                self.lock().extract_if(|_, entry| entry.end(Some(now))).map(|(_, entry)| entry).collect();
            if !over.is_empty() {
                return Some(over);
            }
            let next = {
                // Held while counting: who comes too late to be counted sees what is waited for.
                let mut next = self.lock_next();
                *next = self.lock().values().map(|entry| entry.lock().ends).min();
                *next
            };
            match next {
                None if self.abandoned.load(Ordering::Acquire) => return None,
                None => self.sooner.notified().await,
                Some(at) => tokio::select! {
                    () = sleep_until(clock, at) => {}
                    () = self.sooner.notified() => {}
                },
            }
        }
    }
}

/// How long to pause before the next attempt at what must be done.
pub(crate) fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(6))
}
