//! The renewer: one task per client that renews every entry, holders and waiters, at a third of its lease, in batches.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::Client;
use super::acquire::fewer;
use super::entry::{Entry, View};
use super::guard::LossReason;
use crate::backend::Renewal;
use crate::clock::{Timestamp, sleep_until};
use crate::toolkit::Mutex;

/// How many entries that are not due are looked past for those with more slack.
const SPARED: usize = 256;

/// Where the renewer has an entry: the moment of its next event, and a number that makes it unique.
pub(crate) type Key = (Timestamp, u64);

#[derive(Debug, Default)]
pub(crate) struct Renewer {
    queue: Mutex<Queue>,
    /// Notified when an event comes before the one the task sleeps for, and when the client goes.
    sooner: Arc<Notify>,
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

impl Renewer {
    pub(super) fn wake(&self) {
        self.sooner.notify_one();
    }

    /// Takes an entry into care, or moves it to its next event. An entry that is over is let go.
    pub(crate) fn track(&self, entry: &Arc<Entry>) {
        self.reschedule(entry, true);
    }

    /// Moves an entry in care to its next event.
    fn moved(&self, entry: &Arc<Entry>) {
        self.reschedule(entry, false);
    }

    fn reschedule(&self, entry: &Arc<Entry>, new: bool) {
        let mut queue = self.queue.lock();
        let mut key = entry.key.lock();
        let was = key.take().map(|old| queue.events.remove(&old));
        if was.is_none() && !new {
            return;
        }
        let Some(at) = entry.next_event() else { return };
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
        let entry = key.and_then(|key| queue.events.remove(&key));
        if let Some(entry) = entry.filter(|entry| entry.is_kept()) {
            // Looked through when twice as many are there as last time: thousands may be lost at once.
            if queue.lost.len() == queue.lost.capacity() {
                queue.lost.retain(|entry| entry.is_kept());
                let as_many = queue.lost.len();
                queue.lost.reserve(as_many);
            }
            queue.lost.push(entry);
        }
    }

    /// The entries whose event has come at `now`, and those close enough to join them; they stay in care.
    fn due(&self, now: Timestamp) -> Vec<Arc<Entry>> {
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
    fn next(&self) -> Option<Timestamp> {
        let mut queue = self.queue.lock();
        queue.sleeps_until = queue.events.keys().next().map(|(at, _)| *at);
        queue.sleeps_until
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.queue.lock().events.values().cloned().collect()
    }
}

/// Starts the task; it ends when the client is gone.
pub(super) fn start(client: &Arc<Client>) {
    let sooner = Arc::clone(&client.renewer.sooner);
    let clock = Arc::clone(&client.clock);
    let weak = Arc::downgrade(client);
    client.runtime.spawn(async move {
        loop {
            let Some(next) = round(&weak) else { return };
            match next {
                Some(at) => tokio::select! {
                    () = sleep_until(&clock, at) => {}
                    () = sooner.notified() => {}
                },
                None => sooner.notified().await,
            }
        }
    });
}

/// Does what is due; the moment of the next event. `None` when the client is gone.
fn round(client: &Weak<Client>) -> Option<Option<Timestamp>> {
    let client = client.upgrade()?;
    let now = client.clock.now();
    let (mut entries, mut due) = (Vec::new(), Vec::new());
    for entry in client.renewer.due(now) {
        if let View::Over(_) = entry.view(now) {
            client.noticed(&entry, now);
            // Work may still be running under a hold: its guard gives it back.
            client.renewer.untrack(&entry);
            client.give_back_unreceived(&entry);
            continue;
        }
        let renewal = entry.due_renewal(now);
        // Also without one, as while the caller asks for itself: an event that stays due would be served in a loop.
        client.renewer.moved(&entry);
        if let Some(renewal) = renewal {
            if let Some(observers) = &client.observers {
                observers.due(&entry, now);
            }
            entries.push(entry);
            due.push(renewal);
        }
    }
    // Side by side: a call that hangs starves nobody else.
    let size = client.capabilities.max_batch.max(1);
    for (entries, due) in entries.chunks(size).zip(due.chunks(size)) {
        client.runtime.spawn(renew(Arc::clone(&client), now, entries.to_vec(), due.to_vec()));
    }
    Some(client.renewer.next())
}

async fn renew(client: Arc<Client>, sent: Timestamp, entries: Vec<Arc<Entry>>, due: Vec<Renewal>) {
    let mut answers = client.backend.renew(&due).await.into_iter();
    let now = client.clock.now();
    for entry in &entries {
        let answer = answers.next().unwrap_or_else(fewer);
        if let Some(observers) = &client.observers {
            observers.renewed(entry, now, &answer);
        }
        entry.renewed(sent, now, &answer);
        client.noticed(entry, now);
        client.renewer.moved(entry);
        client.give_back_unreceived(entry);
    }
}

/// Ends every entry because the client closes, and gives back what no caller has. What stays in the store until its guard
/// goes, and which of it somebody learns of.
pub(super) fn close(client: &Arc<Client>) -> (Vec<Arc<Entry>>, Vec<Arc<Entry>>) {
    let now = client.clock.now();
    let mut entries = client.renewer.all();
    entries.extend(client.renewer.queue.lock().lost.iter().cloned());
    // Before the end: work that learns of it may have ended at once, and its guard is about to go.
    let watched = entries.iter().filter(|entry| entry.is_watched()).cloned().collect();
    for entry in &entries {
        entry.end(now, LossReason::Closed);
        client.noticed(entry, now);
        client.renewer.untrack(entry);
        client.give_back_unreceived(entry);
    }
    entries.retain(|entry| entry.is_kept());
    (entries, watched)
}
