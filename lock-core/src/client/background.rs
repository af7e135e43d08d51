//! What this client has under way in the background: releases in the background, and calls whose caller went away.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Client;
use super::entry::Entry;
use crate::around::at_least;
use crate::backend::{Release, Ticket};
use crate::clock::Timestamp;
use crate::error::Result;

#[derive(Debug, Default)]
pub(crate) struct Background {
    count: AtomicUsize,
    none: Notify,
}

impl Background {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Ends when nothing is pending.
    pub(super) async fn settled(&self) {
        loop {
            let none = self.none.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

/// One release or call under way, or about to be; counted until dropped, even when the runtime drops it unfinished.
pub(crate) struct Pending(Arc<Client>);

impl Pending {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        client.background.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(client))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.background.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.background.none.notify_waiters();
        }
    }
}

impl Client {
    /// An entry may be over: observers learn of it.
    pub(crate) fn noticed(&self, entry: &Entry, now: Timestamp) {
        if let Some(observers) = &self.observers {
            observers.looked_at(entry, now);
        }
    }

    fn unused(&self, ticket: &Ticket, granted: bool) {
        if let Some(observers) = self.observers.as_ref().filter(|_| granted) {
            observers.unused(ticket);
        }
    }

    /// Runs `work` in the background and counts it as pending. Never blocks or panics: on a runtime that is gone the work
    /// is dropped, and leases free what it would have freed.
    pub(super) fn in_background(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let pending = Pending::new(self);
        self.runtime.spawn(async move {
            work.await;
            drop(pending);
        });
    }

    /// Gives an entry back in the background, if that is still owed.
    pub(crate) fn give_back(self: &Arc<Self>, entry: &Entry) {
        if let Some(ticket) = entry.take_owed() {
            self.unused(&ticket, entry.is_unused());
            self.release_later(ticket, entry.store_lease(), entry.stays_until());
        }
    }

    /// The same for an entry that is over before a caller has received it.
    pub(super) fn give_back_unreceived(self: &Arc<Self>, entry: &Entry) {
        if let Some(ticket) = entry.take_unreceived() {
            self.unused(&ticket, entry.is_unused());
            self.release_later(ticket, entry.store_lease(), None);
        }
    }

    /// Releases in the background until the store gives a definite answer, for at most `lease`.
    pub(crate) fn release_later(self: &Arc<Self>, ticket: Ticket, lease: Duration, stay: Option<Timestamp>) {
        let client = Arc::clone(self);
        self.in_background(async move {
            // A failure has nobody to tell: the lease frees the lock.
            let _ = release(client, ticket, lease, stay).await;
        });
    }
}

/// Releases until the store gives a definite answer, for at most `lease`: after that the store has dropped the entry. An entry
/// that must stay until `stay` is kept, and released then.
pub(super) async fn release(
    client: Arc<Client>,
    ticket: Ticket,
    lease: Duration,
    stay: Option<Timestamp>,
) -> Result<Release> {
    let until = client.clock.now() + lease;
    let mut pause = Duration::from_millis(10);
    let mut unclear = false;
    loop {
        let answer = match stay.filter(|stay| *stay > client.clock.now()) {
            Some(stay) => at_least::keep(&client, &ticket, stay).await,
            None => client.backend.release(&ticket).await,
        };
        let error = match answer {
            // An earlier try may have done it and lost the answer.
            Ok(Release::NotHeld) if unclear => return Ok(Release::Released),
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        unclear |= error.is_unclear();
        if !error.is_retryable() || client.clock.now() + pause >= until {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
