//! The entries of this client, and the task that ends what nobody renews.
//!
//! A session keeps all its nodes alive as long as the process lives. A lease is about one entry: when nobody has renewed
//! it for its time, this client deletes its node, as a store with leases of its own would. The session is for the case
//! that this client cannot.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onelock_core::clock::sleep_until;
use onelock_core::{FencingToken, HolderId, LockName, Mode, Timestamp};
use tokio::sync::Notify;

use crate::backend::Core;
use crate::layout::Draft;
use crate::leave::erase_later;
use crate::line::Watch;
use crate::pool::Room;

pub(crate) type Key = (LockName, HolderId);

/// What a watch that is set will bring.
pub(crate) type Fired = Pin<Box<dyn Future<Output = News> + Send>>;

/// What a waiter hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Those it waited for have gone and its own node has not: it holds.
    Promoted,
    /// The one it waited for has gone: it holds if its own node is there.
    Unblocked,
    /// Something happened: the line says what.
    Changed,
    /// The session is over.
    Over,
}

/// Where a waiter is on its way to be told.
pub(crate) enum Step {
    /// The line is to be looked at.
    Look,
    /// A watch is to be set.
    Arm(Watch),
    /// Nobody is ahead: its own node is to be seen. It may have been evicted while it waited.
    Confirm,
    /// A watch is set.
    Armed(Fired),
}

/// One entry of this client.
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    /// What its node was made from, and the node's path.
    pub(crate) draft: Arc<Draft>,
    pub(crate) path: String,
    /// It made the node of the name, so that one may go with it.
    pub(crate) alone: bool,
    pub(crate) session: Arc<Room>,
    state: Mutex<State>,
}

/// What an entry waits for, as it was when its line was read last.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) watch: Watch,
    /// The transaction that changed the line last.
    pub(crate) changed: i64,
}

struct State {
    ahead: Option<Ahead>,
    /// When its lease ends, lock-delay included.
    ends: Timestamp,
    held: bool,
    gone: bool,
    step: Step,
}

/// What [`Entry::new`] is made of.
pub(crate) struct Made {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) draft: Arc<Draft>,
    pub(crate) path: String,
    pub(crate) alone: bool,
    pub(crate) session: Arc<Room>,
}

impl Entry {
    /// An entry that holds, or waits and has a first step to take.
    pub(crate) fn new(made: Made, ends: Timestamp, waits: Option<(Ahead, Step)>) -> Arc<Self> {
        let Made { key, mode, token, draft, path, alone, session } = made;
        let held = waits.is_none();
        let (ahead, step) = waits.map_or((None, Step::Look), |(ahead, step)| (Some(ahead), step));
        let state = State { ahead, ends, held, gone: false, step };
        Arc::new(Self { key, mode, token, draft, path, alone, session, state: Mutex::new(state) })
    }

    /// The node of the name.
    pub(crate) fn parent(&self) -> &str {
        &self.draft.parent
    }

    /// Its own node's name.
    pub(crate) fn node(&self) -> &str {
        self.draft.node(&self.path)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lock().held
    }

    /// What it waits for, if its line has been read.
    pub(crate) fn ahead(&self) -> Option<Ahead> {
        self.lock().ahead.clone()
    }

    pub(crate) fn wait_for(&self, watch: Watch, changed: i64) {
        self.lock().ahead = Some(Ahead { watch, changed });
    }

    /// Notes that it holds; whether that is new.
    pub(crate) fn hold(&self) -> bool {
        let mut state = self.lock();
        let step = std::mem::replace(&mut state.step, Step::Look);
        let new = !std::mem::replace(&mut state.held, true);
        // A watch that is dropped tells its session: not under the lock.
        drop(state);
        drop(step);
        new
    }

    pub(crate) fn take_step(&self) -> Step {
        std::mem::replace(&mut self.lock().step, Step::Look)
    }

    pub(crate) fn put_step(&self, step: Step) {
        let mut state = self.lock();
        if state.gone || state.held {
            drop(state);
            return;
        }
        let old = std::mem::replace(&mut state.step, step);
        drop(state);
        drop(old);
    }

    /// Lets its lease end no earlier than `ends`; false when it is over already.
    pub(crate) fn keep_until(&self, ends: Timestamp) -> bool {
        let mut state = self.lock();
        state.ends = state.ends.max(ends);
        !state.gone
    }

    /// Ends it; whether it was not over yet.
    fn end(&self) -> bool {
        let mut state = self.lock();
        let step = std::mem::replace(&mut state.step, Step::Look);
        let was = !std::mem::replace(&mut state.gone, true);
        drop(state);
        drop(step);
        was
    }

    fn ends(&self) -> Timestamp {
        self.lock().ends
    }

    /// Ends it if its lease is over.
    fn expire(&self, now: Timestamp) -> bool {
        let mut state = self.lock();
        let over = !state.gone && state.ends <= now;
        state.gone |= over;
        let step = if over { std::mem::replace(&mut state.step, Step::Look) } else { Step::Look };
        drop(state);
        drop(step);
        over
    }
}

/// All entries of a client.
#[derive(Default)]
pub(crate) struct Table {
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
    /// What the reaper sleeps for.
    wakes_at: Mutex<Option<Timestamp>>,
    sooner: Notify,
    abandoned: AtomicBool,
}

impl Table {
    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wakes_at(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.wakes_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry, unless its lease is over at `now`.
    pub(crate) fn get(&self, key: &Key, now: Timestamp) -> Option<Arc<Entry>> {
        let entry = self.entries().get(key).cloned()?;
        let lives = {
            let state = entry.lock();
            state.ends > now && !state.gone
        };
        lives.then_some(entry)
    }

    pub(crate) fn insert(&self, entry: Arc<Entry>) {
        let ends = entry.ends();
        self.entries().insert(entry.key.clone(), entry);
        if self.wakes_at().is_none_or(|at| ends < at) {
            self.sooner.notify_one();
        }
    }

    /// Forgets an entry, and its watch.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        entry.end();
        let mut entries = self.entries();
        if let Some(other) = entries.remove(&entry.key)
            && !Arc::ptr_eq(&other, entry)
        {
            entries.insert(other.key.clone(), other);
        }
    }

    pub(crate) fn has_path(&self, path: &str) -> bool {
        self.entries().values().any(|entry| entry.path == path)
    }

    pub(crate) fn clear(&self) {
        let all: Vec<_> = self.entries().drain().map(|(_, entry)| entry).collect();
        for entry in all {
            entry.end();
        }
        self.sooner.notify_one();
    }

    /// Nobody will renew anything any more: the reaper ends with the last entry.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.sooner.notify_one();
    }

    /// Takes out what is over at `now`.
    fn expired(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let mut over = Vec::new();
        let mut entries = self.entries();
        entries.retain(|_, entry| {
            let expired = entry.expire(now);
            if expired {
                over.push(Arc::clone(entry));
            }
            !expired
        });
        over
    }

    /// When the next lease ends; `None` without entries.
    fn next(&self) -> Option<Timestamp> {
        // Held while counting: who comes too late to be counted sees what is slept for.
        let mut wakes_at = self.wakes_at();
        *wakes_at = self.entries().values().map(|entry| entry.ends()).min();
        *wakes_at
    }
}

/// Deletes the nodes of entries whose lease is over. It keeps the sessions of a client that was dropped, until the last
/// of its entries is over: to close them would end leases before their time.
pub(crate) async fn reap(core: Arc<Core>) {
    loop {
        for entry in core.table.expired(core.target.clock.now()) {
            erase_later(&core, &entry.session, entry.path.clone());
        }
        let next = core.table.next();
        if core.is_closed() || (next.is_none() && core.table.abandoned.load(Ordering::Acquire)) {
            return;
        }
        match next {
            Some(at) => tokio::select! {
                () = sleep_until(&core.target.clock, at) => {}
                () = core.table.sooner.notified() => {}
            },
            None => core.table.sooner.notified().await,
        }
    }
}

/// How long to pause before the next attempt at what must be done.
pub(crate) fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(6))
}
