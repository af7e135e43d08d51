//! Which entries of a client are renewed, and when each is to be looked at next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::entry::{Entry, Key};
use crate::clock::Timestamp;
use crate::toolkit::Mutex;

/// Where an entry is that is lost while its guard lives on: nothing is due, and a close must know it.
const LOST: Timestamp = Timestamp::from_origin(Duration::MAX);

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    queue: Mutex<Queue>,
    /// Notified when an event comes before the one the task sleeps for, and when the client goes.
    pub(super) sooner: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Queue {
    events: BTreeMap<Key, Arc<Entry>>,
    count: u64,
    /// What the task sleeps for; `None` means for ever.
    sleeps_until: Option<Timestamp>,
}

impl Schedule {
    pub(super) fn wake(&self) {
        self.sooner.notify_one();
    }

    /// Takes an entry into care, or moves it to its next event. An entry that is over and no guard's is let go.
    pub(crate) fn track(&self, entry: &Arc<Entry>) {
        let mut queue = self.queue.lock();
        let mut key = entry.key.lock();
        if let Some(old) = key.take() {
            queue.events.remove(&old);
        }
        let lost = || entry.is_kept().then_some(LOST);
        let Some(at) = entry.next_event().or_else(lost) else { return };
        queue.count += 1;
        let next = (at, queue.count);
        queue.events.insert(next, Arc::clone(entry));
        *key = Some(next);
        if queue.sleeps_until.is_none_or(|until| at < until) {
            self.wake();
        }
    }

    /// The entries whose event has come at `now`, and those close enough to join them; they stay in care.
    pub(super) fn due(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let queue = self.queue.lock();
        let mut due = Vec::new();
        for ((at, _), entry) in &queue.events {
            if *at > now && (due.is_empty() || *at > now + entry.slack()) {
                break;
            }
            due.push(Arc::clone(entry));
        }
        due
    }

    /// The moment to sleep for.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let mut queue = self.queue.lock();
        queue.sleeps_until = queue.events.keys().map(|(at, _)| *at).next().filter(|at| *at < LOST);
        queue.sleeps_until
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.queue.lock().events.range(..(LOST, 0)).map(|(_, entry)| Arc::clone(entry)).collect()
    }

    /// Those in care, and what is lost while its guard lives on.
    pub(super) fn all_and_lost(&self) -> Vec<Arc<Entry>> {
        self.queue.lock().events.values().cloned().collect()
    }
}
