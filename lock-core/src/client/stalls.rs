//! Looks after calls that were woken and that nobody polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;

use super::Client;

/// How long a call may be woken without being polled, at least; twice as long at most.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same while there are such calls: others may wait behind them for the same thing.
const IMPATIENCE: Duration = Duration::from_millis(5);

/// A call under way, as its client sees it.
pub(super) trait Stall: Send + Sync {
    /// Whether it was woken before the last look and not polled since.
    fn is_stalled(&self) -> bool;

    /// Goes on with it in a task of its own, if it still stands: whether it did.
    fn help(self: Arc<Self>, client: &Arc<Client>) -> bool;
}

/// The place of a call in its client's care.
pub(super) type Key = usize;

/// The calls under way of a client.
#[derive(Default)]
pub(super) struct Stalls {
    calls: Mutex<Calls>,
    some: Arc<Notify>,
}

#[derive(Default)]
struct Calls {
    under_way: Slab<Arc<dyn Stall>>,
    /// Whether the task that looks knows that there are some.
    looked_after: bool,
}

impl Stalls {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call into care until it is forgotten.
    pub(super) fn watch<S: Stall + 'static>(&self, call: &Arc<S>) -> Key {
        let call: Arc<S> = Arc::clone(call);
        let mut calls = self.lock();
        let key = calls.under_way.insert(call);
        if !std::mem::replace(&mut calls.looked_after, true) {
            self.some.notify_one();
        }
        key
    }

    pub(super) fn forget(&self, key: Key) {
        let call = self.lock().under_way.try_remove(key);
        // Not with the lock: what a call has may be much.
        drop(call);
    }

    pub(super) fn wake(&self) {
        self.some.notify_one();
    }
}

/// Starts the task that looks; it ends when the client is gone.
pub(super) fn start(client: &Arc<Client>) {
    let some = Arc::clone(&client.stalls.some);
    let weak = Arc::downgrade(client);
    client.runtime.spawn(async move {
        loop {
            some.notified().await;
            while let Some(client) = weak.upgrade() {
                let Some(helped) = look(&client) else { break };
                drop(client);
                tokio::time::sleep(if helped == 0 { PATIENCE } else { IMPATIENCE }).await;
            }
            if weak.strong_count() == 0 {
                return;
            }
        }
    });
}

/// Helps those that stand still: how many. `None` when no call is under way.
fn look(client: &Arc<Client>) -> Option<usize> {
    let mut calls = client.stalls.lock();
    if calls.under_way.is_empty() {
        calls.looked_after = false;
        return None;
    }
    let stand = |call: &&Arc<dyn Stall>| call.is_stalled();
    let stalled: Vec<_> = calls.under_way.iter().map(|(_, call)| call).filter(stand).cloned().collect();
    drop(calls);
    Some(stalled.into_iter().filter(|call| Arc::clone(call).help(client)).count())
}
