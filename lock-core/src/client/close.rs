//! The end of a client: what no caller has is given back at once, and a lost lock when its guard goes.

use std::sync::Arc;
use std::time::Duration;

use super::entry::Entry;
use super::shared::Client;
use crate::clock::{Timestamp, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::model::loss::LossReason;

impl Client {
    pub(crate) async fn close(self: &Arc<Self>, timeout: Duration) -> Result<()> {
        let client = self;
        let now = client.clock.now();
        let kept = end_all(client, now);
        // The loss of these is waited for, as a rule by work: their guards are about to go.
        let watched: Vec<_> = kept.iter().filter(|entry| entry.is_watched()).cloned().collect();
        let until = now + timeout;
        let late =
            |text: String| Error::new(ErrorKind::Timeout, text).during("close").at(&client.info.address);
        let drained = tokio::select! {
            biased;
            () = all_given_back(client, &watched) => Ok(()),
            () = sleep_until(&client.clock, until) => Err(late(match watched.iter().filter(|entry| entry.is_kept()).count() {
                0 => format!("{} releases are not confirmed; their leases free them", client.background.count()),
                working => format!("work under {working} locks has not ended; they stay until it has, at most for their leases"),
            })),
        };
        // Their guards live on, and nobody has learned that they are lost: the store is closed after them.
        let stay = kept.iter().any(|entry| entry.is_kept());
        let closing = client.runtime.spawn(close_store(Arc::clone(client), kept, now));
        if stay {
            return drained;
        }
        let closed = tokio::select! {
            biased;
            closed = closing => closed.unwrap_or_else(|_| Err(late("the runtime of this client has ended".into()))),
            () = sleep_until(&client.clock, until) => Err(late("the connections are still closing".into())),
        };
        drained.and(closed)
    }
}

/// Ends every entry because the client closes, and gives back what no caller has. What stays in the store until its guard goes.
fn end_all(client: &Arc<Client>, now: Timestamp) -> Vec<Arc<Entry>> {
    let mut entries = client.schedule.all_and_lost();
    for entry in &entries {
        entry.end(now, LossReason::Closed);
        client.settle(entry, now);
    }
    entries.retain(|entry| entry.is_kept());
    entries
}

/// Waits until the guards of these have gone and nothing else is under way.
async fn all_given_back(client: &Client, entries: &[Arc<Entry>]) {
    for entry in entries {
        entry.until(|| !entry.is_kept()).await;
    }
    client.background.settled().await;
}

/// Closes the store, which on some stores ends what the client has there: not before the guards have gone and their locks are
/// given back, or what they held until `closed` has run out.
async fn close_store(client: Arc<Client>, kept: Vec<Arc<Entry>>, closed: Timestamp) -> Result<()> {
    let lease = kept.iter().map(|entry| entry.store_lease()).fold(client.settings.ttl, Duration::max);
    tokio::select! {
        () = all_given_back(&client, &kept) => {}
        () = sleep_until(&client.clock, closed + lease) => {}
    }
    client.backend.close().await
}
