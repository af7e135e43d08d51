//! The renewer: one task per client that renews every entry, holders and waiters, at a third of its lease, in batches.

use std::sync::{Arc, Weak};

use super::cancel_safe::fewer;
use super::entry::{Entry, View};
use super::shared::Client;
use crate::backend::Renewal;
use crate::clock::{Timestamp, sleep_until};

/// Starts the task; it ends when the client is gone.
pub(super) fn start(client: &Arc<Client>) {
    let sooner = Arc::clone(&client.schedule.sooner);
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
    for entry in client.schedule.due(now) {
        if let View::Over(_) = entry.view(now) {
            client.settle(&entry, now);
            continue;
        }
        let renewal = entry.due_renewal(now);
        // Also without one, as while the caller asks for itself: an event that stays due would be served in a loop.
        client.schedule.track(&entry);
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
    Some(client.schedule.next())
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
        client.settle(entry, now);
    }
}
