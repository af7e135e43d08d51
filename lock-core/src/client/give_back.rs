//! Giving entries back: a release is asked for until the store confirms it, or the lease is over.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::cancel_safe::renew_one;
use super::entry::Entry;
use super::shared::Client;
use super::tries::Tries;
use crate::backend::{Release, Renewal, Renewed, Ticket};
use crate::clock::{Timestamp, sleep_until};
use crate::error::{Error, Result};
use crate::lease;

impl Client {
    /// Runs `work` in the background and counts it as pending. Never blocks or panics: on a runtime that is gone the work
    /// is dropped, and leases free what it would have freed.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(self.background.counted(work));
    }

    /// Gives an entry back in the background, if that is still owed.
    pub(crate) fn give_back(self: &Arc<Self>, entry: &Arc<Entry>) {
        self.release_owed(entry, entry.take_owed());
        self.schedule.track(entry);
    }

    /// After a change of an entry: observers learn of its end, and one that is over before a caller has received it is given back. One
    /// that a guard has is not: work may still be running under it.
    pub(crate) fn settle(self: &Arc<Self>, entry: &Arc<Entry>, now: Timestamp) {
        if let Some(observers) = &self.observers {
            observers.looked_at(entry, now);
        }
        // Counted before it is taken, and tracked until then: a `close` that finds nothing owed waits for the release.
        let _counted = self.background.begin();
        self.release_owed(entry, entry.take_unreceived());
        self.schedule.track(entry);
    }

    fn release_owed(self: &Arc<Self>, entry: &Entry, ticket: Option<Ticket>) {
        let Some(ticket) = ticket else { return };
        if let Some(observers) = self.observers.as_ref().filter(|_| entry.is_unused()) {
            observers.unused(&ticket);
        }
        let releasing = release(Arc::clone(self), ticket, entry.store_lease(), entry.stays_until(), false);
        self.unattended(releasing);
    }

    /// Releases in the background until the store gives a definite answer, for at most `lease`. What is `unclear` a failed
    /// acquire may have left: of many such releases a few are repeated at a time.
    pub(crate) fn release_later(self: &Arc<Self>, ticket: Ticket, lease: Duration, unclear: bool) {
        self.unattended(release(Arc::clone(self), ticket, lease, None, unclear));
    }

    fn unattended(&self, releasing: impl Future<Output = Result<Release>> + Send + 'static) {
        // A failure has nobody to tell: the lease frees the lock.
        self.in_background(async move { drop(releasing.await) });
    }
}

/// Releases until the store gives a definite answer, for at most `lease` from the first failure: after that the store has dropped the entry. An entry
/// that must stay until `stay` is kept, and released then. `in_turn`, a few of them are repeated at a time.
pub(super) async fn release(
    client: Arc<Client>,
    ticket: Ticket,
    lease: Duration,
    stay: Option<Timestamp>,
    in_turn: bool,
) -> Result<Release> {
    let (mut tries, mut unclear) = (Tries::new(in_turn.then_some(&client.turns)), false);
    loop {
        let stays = stay.filter(|stay| *stay > client.clock.now());
        let answer = match stays {
            // In a place of its own, as the pause: most releases need neither.
            Some(stay) => Box::pin(keep(&client, &ticket, stay)).await,
            None => client.backend.release(&ticket).await,
        };
        // An earlier try may have done it and lost the answer; none to keep it has.
        if unclear && matches!(answer, Ok(Release::NotHeld)) {
            return Ok(Release::Released);
        }
        unclear |= stays.is_none() && answer.as_ref().is_err_and(Error::is_unclear);
        if answer.is_ok() || !Box::pin(tries.again(&answer, lease)).await {
            return answer;
        }
    }
}

/// Instead of a release: the store keeps the entry until `until`. Released then if this client still lives; a lease that is
/// longer than that would block the lock until its end.
async fn keep(client: &Arc<Client>, ticket: &Ticket, until: Timestamp) -> Result<Release> {
    let left = until.saturating_since(client.clock.now()).max(client.capabilities.min_lease);
    let lease = lease::round_up(left, client.capabilities.lease_step);
    let renewal = Renewal::new(ticket.clone(), lease, lease);
    if renew_one(client, renewal).await? == Renewed::NotHeld {
        return Ok(Release::NotHeld);
    }
    let (weak, ticket, clock) = (Arc::downgrade(client), ticket.clone(), Arc::clone(&client.clock));
    client.runtime.spawn(async move {
        sleep_until(&clock, until).await;
        if let Some(client) = weak.upgrade() {
            client.release_later(ticket, lease, false);
        }
    });
    Ok(Release::Released)
}
