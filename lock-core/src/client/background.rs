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

/// What is under way of a client or a quorum.
#[derive(Debug, Default)]
pub(crate) struct Background(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    pending: AtomicUsize,
    none: Notify,
}

impl Background {
    pub(super) fn count(&self) -> usize {
        self.0.pending.load(Ordering::Acquire)
    }

    /// Counts one more.
    pub(crate) fn begin(&self) -> Pending {
        self.0.pending.fetch_add(1, Ordering::AcqRel);
        Pending(Arc::clone(&self.0))
    }

    /// This work, which is counted from now on.
    pub(crate) fn counted<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let pending = self.begin();
        async move {
            let answer = work.await;
            drop(pending);
            answer
        }
    }

    /// Ends when nothing is pending.
    pub(crate) async fn settled(&self) {
        loop {
            let none = self.0.none.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

/// One release or call under way, or about to be; counted until dropped, even when the runtime drops it unfinished.
pub(crate) struct Pending(Arc<Count>);

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
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

    /// Runs `work` in the background and counts it as pending. Never blocks or panics: on a runtime that is gone the work
    /// is dropped, and leases free what it would have freed.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(self.background.counted(work));
    }

    /// Gives an entry back in the background, if that is still owed.
    pub(crate) fn give_back(self: &Arc<Self>, entry: &Entry) {
        self.release_owed(entry, entry.take_owed());
    }

    /// The same for an entry that is over before a caller has received it.
    pub(super) fn give_back_unreceived(self: &Arc<Self>, entry: &Entry) {
        self.release_owed(entry, entry.take_unreceived());
    }

    fn release_owed(self: &Arc<Self>, entry: &Entry, ticket: Option<Ticket>) {
        let Some(ticket) = ticket else { return };
        if let Some(observers) = self.observers.as_ref().filter(|_| entry.is_unused()) {
            observers.unused(&ticket);
        }
        self.release_later(ticket, entry.store_lease(), entry.stays_until());
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

/// Releases until the store gives a definite answer, for at most `lease` from the first failure: after that the store has dropped the entry. An entry
/// that must stay until `stay` is kept, and released then.
pub(super) async fn release(
    client: Arc<Client>,
    ticket: Ticket,
    lease: Duration,
    stay: Option<Timestamp>,
) -> Result<Release> {
    let mut until = None;
    let mut pause = Duration::from_millis(10);
    let mut unclear = false;
    loop {
        let answer = match stay.filter(|stay| *stay > client.clock.now()) {
            // In a place of its own, as the pause below: most releases need neither.
            Some(stay) => Box::pin(at_least::keep(&client, &ticket, stay)).await,
            None => client.backend.release(&ticket).await,
        };
        let error = match answer {
            // An earlier try may have done it and lost the answer.
            Ok(Release::NotHeld) if unclear => return Ok(Release::Released),
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        unclear |= error.is_unclear();
        let now = client.clock.now();
        if !error.is_retryable() || now + pause >= *until.get_or_insert(now + lease) {
            return Err(error);
        }
        Box::pin(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
