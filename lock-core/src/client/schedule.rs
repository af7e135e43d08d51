//! Which entries of a client are renewed, and when each is to be looked at next.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::entry::{Entry, Key};
use crate::clock::Timestamp;
use crate::toolkit::Mutex;

/// How many entries that are not due are looked past for those with more slack.
const SPARED: usize = 256;

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
    /// What is lost while its guard lives on.
    lost: Vec<Arc<Entry>>,
    /// What the task sleeps for; `None` means for ever.
    sleeps_until: Option<Timestamp>,
}

impl Queue {
    /// An entry was in care and is over.
    fn ended(&mut self, entry: &Arc<Entry>) {
        if !entry.is_kept() {
            return;
        }
        // Looked through when twice as many are there as last time: thousands may be lost at once.
        if self.lost.len() == self.lost.capacity() {
            self.lost.retain(|entry| entry.is_kept());
            self.lost.reserve(self.lost.len());
        }
        self.lost.push(Arc::clone(entry));
    }
}

impl Schedule {
    pub(super) fn wake(&self) {
        self.sooner.notify_one();
    }

    /// Takes an entry into care, or moves it to its next event. An entry that is over is let go.
    pub(crate) fn track(&self, entry: &Arc<Entry>) {
        self.reschedule(entry, true);
    }

    /// Moves an entry in care to its next event.
    pub(super) fn moved(&self, entry: &Arc<Entry>) {
        self.reschedule(entry, false);
    }

    fn reschedule(&self, entry: &Arc<Entry>, new: bool) {
        let mut queue = self.queue.lock();
        let mut key = entry.key.lock();
        let was = key.take().map(|old| queue.events.remove(&old));
        if was.is_none() && !new {
            return;
        }
        let Some(at) = entry.next_event() else {
            queue.ended(entry);
            return;
        };
        queue.count += 1;
        let next = (at, queue.count);
        queue.events.insert(next, Arc::clone(entry));
        *key = Some(next);
        if queue.sleeps_until.is_none_or(|until| at < until) {
            self.wake();
        }
    }

    /// Lets an entry go.
    pub(crate) fn untrack(&self, entry: &Entry) {
        let mut queue = self.queue.lock();
        let key = entry.key.lock().take();
        if let Some(entry) = key.and_then(|key| queue.events.remove(&key)) {
            queue.ended(&entry);
        }
    }

    /// The entries whose event has come at `now`, and those close enough to join them; they stay in care.
    pub(super) fn due(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let queue = self.queue.lock();
        let mut due = Vec::new();
        let mut spared = 0;
        for ((at, _), entry) in &queue.events {
            if *at > now + entry.slack() {
                // Entries of different leases mix in the order; look a little further for those with more slack.
                spared += 1;
                if *at > now && spared > SPARED {
                    break;
                }
                continue;
            }
            if *at > now && due.is_empty() {
                break;
            }
            due.push(Arc::clone(entry));
        }
        due
    }

    /// The moment to sleep for.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let mut queue = self.queue.lock();
        queue.sleeps_until = queue.events.keys().next().map(|(at, _)| *at);
        queue.sleeps_until
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.queue.lock().events.values().cloned().collect()
    }

    /// Those in care, and what is lost while its guard lives on.
    pub(super) fn all_and_lost(&self) -> Vec<Arc<Entry>> {
        let queue = self.queue.lock();
        queue.events.values().chain(&queue.lost).cloned().collect()
    }
}
