//! Looks after calls that were woken and that nobody polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

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

    /// Goes on with it in a task of its own.
    fn help(self: Arc<Self>, client: &Arc<Client>);
}

/// The calls under way of a client.
#[derive(Default)]
pub(super) struct Stalls {
    /// Those that have ended go at the next look.
    calls: Mutex<Vec<Weak<dyn Stall>>>,
    some: Arc<Notify>,
}

impl Stalls {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Stall>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call into care until it has ended.
    pub(super) fn watch<S: Stall + 'static>(&self, call: &Arc<S>) {
        let call: Weak<S> = Arc::downgrade(call);
        let mut calls = self.lock();
        calls.push(call);
        if calls.len() == 1 {
            self.some.notify_one();
        }
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
    let mut calls = std::mem::take(&mut *client.stalls.lock());
    let mut helped = 0;
    calls.retain(|call| match call.upgrade() {
        Some(call) if call.is_stalled() => {
            helped += 1;
            call.help(client);
            false
        }
        call => call.is_some(),
    });
    let mut new = client.stalls.lock();
    // In front: with one there already, a new one need not tell.
    calls.append(&mut new);
    *new = calls;
    (!new.is_empty()).then_some(helped)
}
