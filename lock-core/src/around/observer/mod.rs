//! What a client does, seen from outside: typed events for an [`Observer`], and the features `tracing` and `metrics`.
//!
//! Nothing is measured, and no clock is read for it, unless somebody observes.
//!
//! | metric (feature `metrics`) | kind | labels |
//! |---|---|---|
//! | `onelock_acquire_seconds` | histogram | `store`, `mode`, `outcome`, `group` |
//! | `onelock_hold_seconds` | histogram | `store`, `mode`, `group` |
//! | `onelock_held`, `onelock_waiting` | gauges | `store`, `mode`, `group` |
//! | `onelock_renewals_total` | counter | `store`, `outcome`, `group` |
//! | `onelock_renewal_slack_ratio` | histogram: the share of the lease that was left when a renewal was answered | `store`, `group` |
//! | `onelock_lost_total` | counter | `store`, `reason`, `group` |
//! | `onelock_store_requests_total` | counter | `store`, `verb`, `outcome` |
//! | `onelock_reconnects_total` | counter | `store` |
//!
//! The dashboard and the alert rules of the project read the histograms by their buckets: an exporter that makes summaries without
//! them, as `metrics-exporter-prometheus` does, must be given some.
//!
//! Spans (feature `tracing`, target `onelock`): `onelock.acquire` with `lock.name`, `lock.mode`, `lock.store`, `outcome`, `wait_ms`,
//! `position`; `onelock.hold` with the same first three, `token`, `held_ms`, `reason`. Events: a failed renewal, a lease with less
//! than a third left, a loss, a reconnect, an eviction, a grant given back unused.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use crate::backend::{Renewed, Ticket};
use crate::client::entry::{Entry, View};
use crate::client::settings::Settings;
use crate::clock::{Clock, Timestamp};
use crate::error::Result;
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::toolkit::{Given, Mutex};

pub(crate) mod acquiring;
pub(crate) mod event;
#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod requests;
mod spans;

use event::Group;
use spans::Span;

pub use event::{Event, Observer, Outcome, Subject};

impl Settings {
    /// Tells `observer` what happens to the locks of this client. The features `tracing` and `metrics` need no observer; their
    /// names and labels are [here](crate::around::observer).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # use onelock::{Event, Observer, Settings};
    /// struct Print;
    /// impl Observer for Print {
    ///     fn on_event(&self, event: &Event<'_>) {
    ///         println!("{event:?}");
    ///     }
    /// }
    /// let settings = Settings::default().observer(std::sync::Arc::new(Print));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observed_by = Some(Given::new(observer));
        self
    }

    /// The label `group` of metrics, by the name of a lock; empty unless set, because names can be too many for labels.
    ///
    /// ```
    /// let settings = onelock::Settings::default()
    ///     .metric_group(|name| name.split('/').next().unwrap_or_default().to_owned());
    /// ```
    #[must_use]
    pub fn metric_group(mut self, group: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.grouped_by = Some(Given::new(Box::new(group)));
        self
    }
}

/// Tells the events of one client.
#[derive(Debug)]
pub(crate) struct Observers {
    store: Arc<str>,
    clock: Arc<dyn Clock>,
    all: Vec<Given<Arc<dyn Observer>>>,
    group: Option<Group>,
    /// Keyed by the entry's address: a lock resumed in the client that gave it has the same holder id. `None` until the start of one
    /// is reported.
    holds: Mutex<HashMap<usize, Option<OpenHold>>>,
}

#[derive(Debug)]
struct OpenHold {
    of: Subject,
    token: FencingToken,
    began: Timestamp,
    span: Span,
}

impl Observers {
    /// `None` when nobody observes.
    pub(crate) fn new(settings: &Settings, store: &str, clock: &Arc<dyn Clock>) -> Option<Arc<Self>> {
        let (store, clock) = (Arc::from(store), Arc::clone(clock));
        #[cfg_attr(not(feature = "metrics"), expect(unused_mut, reason = "one more with metrics"))]
        let mut all = Vec::from_iter(settings.observed_by.clone());
        #[cfg(feature = "metrics")]
        all.push(Given::new(Arc::new(metrics::Metrics::described(&store))));
        let group = settings.grouped_by.clone();
        let observed = !all.is_empty() || cfg!(feature = "tracing");
        observed.then(|| Arc::new(Self { store, clock, all, group, holds: Mutex::default() }))
    }

    fn tell(&self, span: Option<&Span>, event: &Event<'_>) {
        for observer in &self.all {
            // As a rule in the task that renews: a panic would end all renewals of this client.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.get().on_event(event)));
        }
        spans::tell(span, event);
    }

    fn subject(&self, name: &LockName, mode: Mode) -> Subject {
        let group = |of: &Group| catch_unwind(AssertUnwindSafe(|| of.get()(name.as_str()).into()));
        let group = self.group.as_ref().and_then(|of| group(of).ok()).unwrap_or_default();
        Subject { name: name.clone(), mode, store: Arc::clone(&self.store), group }
    }

    /// Tells of a hold that a caller has.
    pub(crate) fn begun(&self, entry: &Entry) {
        let (place, Some(token)) = (ptr::from_ref(entry).addr(), entry.token()) else { return };
        match self.holds.lock().entry(place) {
            // An owner that entered again has it already, or is getting it.
            Occupied(_) => return,
            Vacant(hold) => hold.insert(None),
        };
        let (of, began) = (self.subject(&entry.ticket().name, entry.ticket().mode), self.clock.now());
        let hold = OpenHold { span: spans::hold(&of, token), of, token, began };
        self.tell(Some(&hold.span), &Event::Held { of: &hold.of, token });
        self.holds.lock().insert(place, Some(hold));
        // It may have come lost.
        self.looked_at(entry, began);
    }

    /// Tells the end of a hold, once it is over.
    pub(crate) fn looked_at(&self, entry: &Entry, now: Timestamp) {
        let View::Over(reason) = entry.view(now) else { return };
        let Some(Some(hold)) = self.holds.lock().remove(&ptr::from_ref(entry).addr()) else { return };
        let held = now.saturating_since(hold.began);
        self.tell(Some(&hold.span), &Event::Ended { of: &hold.of, token: hold.token, held, reason });
    }

    /// Tells what a renewal was answered; before the entry takes the answer.
    pub(crate) fn renewed(&self, entry: &Entry, now: Timestamp, answer: &Result<Renewed>) {
        let (View::Held { deadline } | View::Waiting { deadline, .. }) = entry.view(now) else { return };
        let left = deadline.saturating_since(now).as_secs_f64();
        let slack = (left / entry.granted().as_secs_f64()).min(1.0);
        let (failure, held) = (answer.as_ref().err(), !matches!(answer, Ok(Renewed::NotHeld)));
        let of = self.subject(&entry.ticket().name, entry.ticket().mode);
        self.tell(None, &Event::Renewed { of: &of, token: entry.token(), slack, failure, held });
    }

    /// Tells of a lease that is low; when its renewal is due.
    pub(crate) fn due(&self, entry: &Entry, now: Timestamp) {
        let View::Held { deadline } = entry.view(now) else { return };
        let left = deadline.saturating_since(now);
        if let Some(token) = entry.token().filter(|_| left < entry.granted() / 3) {
            let of = self.subject(&entry.ticket().name, entry.ticket().mode);
            self.tell(None, &Event::LeaseLow { of: &of, token, left });
        }
    }

    /// Tells of a grant that nobody came for.
    pub(crate) fn unused(&self, ticket: &Ticket) {
        self.tell(None, &Event::Unused(&self.subject(&ticket.name, ticket.mode)));
    }
}

#[cfg(test)]
#[path = "../observer_tests.rs"]
mod tests;
