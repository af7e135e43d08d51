//! The line itself: the executable specification of what a store does with one name.
//!
//! Pure: it knows no clock, no waiting, no I/O. The memory store runs it, and model checks compare other stores with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;
use crate::model::holder::HolderId;
use crate::model::mode::{self, Mode};
use crate::model::request::{Busy, Grant, Note, Place, Renewal, Renewed, Request, Standing};
use crate::model::snapshot::EntryView;
use crate::model::token::FencingToken;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose it is.
    #[serde(with = "crate::model::holder::hex")]
    pub holder: HolderId,
    /// Its number.
    pub token: FencingToken,
    /// How it shares the lock.
    pub mode: Mode,
    /// When its lease ends, lock-delay included.
    pub ends: Timestamp,
    /// When it joined.
    pub joined: Timestamp,
    /// The holder's label.
    pub note: Note,
    /// Whether it holds.
    pub held: bool,
}

/// The entries of one name, by number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Line {
    entries: Vec<Entry>,
}

/// The line of these entries, which are in its order. A verb needs no more than those that hold, the first that does not, and those
/// that it is about.
impl FromIterator<Entry> for Line {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

impl Line {
    /// Drops what has expired at `now` and promotes the entries that hold then: `promoted` gets whose they are, who is to be
    /// woken. Every verb starts with this.
    pub fn settle(&mut self, now: Timestamp, promoted: &mut Vec<HolderId>) {
        self.entries.retain(|e| e.ends > now);
        let count = mode::holders(self.entries.iter().map(|e| e.mode));
        for entry in self.entries.iter_mut().take(count).filter(|e| !e.held) {
            entry.held = true;
            promoted.push(entry.holder);
        }
    }

    /// The step of [`crate::Backend::acquire`], after [`Line::settle`]. `next` gives a fresh number.
    pub fn acquire(
        &mut self,
        now: Timestamp,
        request: &Request,
        next: impl FnOnce() -> FencingToken,
    ) -> Standing {
        if self.position(request.holder).is_none() {
            let modes = self.entries.iter().map(|e| e.mode).chain([request.mode]);
            let holds = mode::holders(modes) > self.entries.len();
            if !holds && !request.queue {
                return Standing::Busy(Busy::new(self.earliest_end(now)));
            }
            let lease = if holds { request.lease } else { request.waiter_lease };
            self.entries.push(Entry {
                holder: request.holder,
                token: next(),
                mode: request.mode,
                ends: now + lease + request.delay,
                joined: now,
                note: request.note.clone(),
                held: holds,
            });
        }
        let renewal = Renewal::new(request.ticket(), request.lease, request.waiter_lease);
        match self.renew(now, &renewal) {
            Renewed::Held(grant) => Standing::Held(grant),
            Renewed::Waiting(place) => Standing::Waiting(place),
            // The entry was just found or made.
            Renewed::NotHeld => Standing::Busy(Busy::default()),
        }
    }

    /// The step of [`crate::Backend::renew`] for one entry, after [`Line::settle`].
    pub fn renew(&mut self, now: Timestamp, renewal: &Renewal) -> Renewed {
        let Some(i) = self.position(renewal.ticket.holder) else { return Renewed::NotHeld };
        let retry_after = (i == self.holders()).then(|| self.earliest_end(now)).flatten();
        let entry = &mut self.entries[i];
        let lease = if entry.held { renewal.lease } else { renewal.waiter_lease };
        entry.ends = entry.ends.max(now + lease + renewal.ticket.delay);
        let token = entry.token;
        if entry.held {
            Renewed::Held(Grant::new(token, lease))
        } else {
            Renewed::Waiting(Place::new(token, lease).retry_after(retry_after))
        }
    }

    /// Removes the entry of `holder`; whether it was there. To be followed by [`Line::settle`].
    pub fn remove(&mut self, holder: HolderId) -> bool {
        self.position(holder).map(|i| self.entries.remove(i)).is_some()
    }

    /// The holder of the entry with this number.
    #[must_use]
    pub fn by_token(&self, token: FencingToken) -> Option<HolderId> {
        self.entries.iter().find(|e| e.token == token).map(|e| e.holder)
    }

    /// How many entries hold.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.entries.iter().take_while(|e| e.held).count()
    }

    /// Whether this holder has an entry.
    #[must_use]
    pub fn contains(&self, holder: HolderId) -> bool {
        self.position(holder).is_some()
    }

    /// Whether nobody is in the line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in line order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What people see of the entries, holders first.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> (Vec<EntryView>, Vec<EntryView>) {
        let mut views: Vec<_> = self.entries.iter().map(|e| e.view(now)).collect();
        let waiters = views.split_off(self.holders());
        (views, waiters)
    }

    fn position(&self, holder: HolderId) -> Option<usize> {
        self.entries.iter().position(|e| e.holder == holder)
    }

    fn earliest_end(&self, now: Timestamp) -> Option<Duration> {
        self.entries.iter().take_while(|e| e.held).map(|e| e.ends.saturating_since(now)).min()
    }
}

impl Entry {
    fn view(&self, now: Timestamp) -> EntryView {
        EntryView::new(self.token, self.mode, self.note.as_str())
            .age(now.saturating_since(self.joined))
            .expires_in(self.ends.saturating_since(now))
    }
}
