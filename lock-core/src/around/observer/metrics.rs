//! Metrics by the crate `metrics`.
//!
//! What a cycle without a group records has handles that are asked for once: to make a key of labels and to look it up takes ten
//! times as much as to record. They are the recorder's that was installed when the client was made. Under another one (a
//! recorder of a thread) each event asks anew.

use std::sync::{Arc, OnceLock};

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::{Event, Observer, Outcome, Subject};
use crate::mode::Mode;
use crate::model::loss::LossReason;

#[derive(Default)]
pub(super) struct Metrics {
    store: Arc<str>,
    recorder: usize,
    exclusive: Handles,
    shared: Handles,
    permit: Handles,
    acquires: OnceLock<Counter>,
    releases: OnceLock<Counter>,
}

/// The handles of a mode.
#[derive(Default)]
struct Handles {
    held: OnceLock<Gauge>,
    acquired: OnceLock<Histogram>,
    hold: OnceLock<Histogram>,
}

/// Which recorder is used here and now.
fn recorder() -> usize {
    metrics::with_recorder(|recorder| std::ptr::from_ref(recorder).cast::<()>().addr())
}

impl Metrics {
    /// With the texts and units of all metrics described to the recorder that is installed.
    pub(super) fn described(store: &Arc<str>) -> Self {
        describe_histogram!("onelock_acquire_seconds", Unit::Seconds, "How long acquisitions took");
        describe_histogram!("onelock_hold_seconds", Unit::Seconds, "How long locks were held");
        describe_gauge!("onelock_held", "Locks that are held");
        describe_gauge!("onelock_waiting", "Acquisitions that wait");
        describe_counter!("onelock_renewals_total", "Renewals of leases, by outcome");
        describe_histogram!(
            "onelock_renewal_slack_ratio",
            "The share of the lease that was left when a renewal was answered"
        );
        describe_counter!("onelock_lost_total", "Locks that were lost, by reason");
        describe_counter!("onelock_store_requests_total", "Calls to the store, by verb and outcome");
        describe_counter!(
            "onelock_reconnects_total",
            "Times that the store answered again after failed calls"
        );
        Self { store: Arc::clone(store), recorder: recorder(), ..Self::default() }
    }

    /// The handles of its mode, where they may be used.
    fn handles(&self, of: &Subject) -> Option<&Handles> {
        let handles = match of.mode {
            Mode::Exclusive => &self.exclusive,
            Mode::Shared => &self.shared,
            _ => &self.permit,
        };
        (of.group.is_empty() && recorder() == self.recorder).then_some(handles)
    }

    fn held(&self, of: &Subject, change: impl FnOnce(&Gauge)) {
        let make = || gauge!("onelock_held", labels(of, [mode(of)]));
        with(self.handles(of).map(|of| &of.held), make, change);
    }
}

/// Records with the handle in `cell`, where there is one to use, or with a new one.
fn with<T>(cell: Option<&OnceLock<T>>, make: impl FnOnce() -> T, record: impl FnOnce(&T)) {
    match cell {
        Some(cell) => record(cell.get_or_init(make)),
        None => record(&make()),
    }
}

/// What a lock's series are named by, and these.
fn labels<const N: usize>(of: &Subject, more: [(&'static str, &'static str); N]) -> Vec<Label> {
    let more = more.into_iter().map(|(name, value)| Label::from_static_parts(name, value));
    let of = [("store", &of.store), ("group", &of.group)];
    of.into_iter().map(|(name, value)| Label::new(name, Arc::clone(value))).chain(more).collect()
}

const fn mode(of: &Subject) -> (&'static str, &'static str) {
    ("mode", of.mode_label())
}

const fn reason(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::NotHeld => "not_held",
        LossReason::MaxHold => "max_hold",
        LossReason::Closed => "closed",
        LossReason::HandedOver => "handed_over",
        LossReason::Released => "released",
    }
}

impl Observer for Metrics {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Waiting(of) => {
                gauge!("onelock_waiting", labels(of, [mode(of)])).increment(1.0);
            }
            Event::Acquired { of, outcome, wait, waited, .. } => {
                if *waited {
                    gauge!("onelock_waiting", labels(of, [mode(of)])).decrement(1.0);
                }
                let outcome_is = ("outcome", outcome.as_str());
                let handles = self.handles(of).filter(|_| *outcome == Outcome::Acquired);
                let make = || histogram!("onelock_acquire_seconds", labels(of, [mode(of), outcome_is]));
                with(handles.map(|of| &of.acquired), make, |histogram| histogram.record(*wait));
            }
            Event::Held { of, .. } => self.held(of, |gauge| gauge.increment(1.0)),
            Event::Ended { of, held, reason: why, .. } => {
                self.held(of, |gauge| gauge.decrement(1.0));
                let make = || histogram!("onelock_hold_seconds", labels(of, [mode(of)]));
                with(self.handles(of).map(|of| &of.hold), make, |histogram| histogram.record(*held));
                if why.is_loss() {
                    counter!("onelock_lost_total", labels(of, [("reason", reason(*why))])).increment(1);
                }
            }
            Event::Renewed { of, slack, failure, held, .. } => {
                let outcome = match (failure, held) {
                    (Some(_), _) => "failed",
                    (None, true) => "renewed",
                    (None, false) => "not_held",
                };
                counter!("onelock_renewals_total", labels(of, [("outcome", outcome)])).increment(1);
                if outcome == "renewed" {
                    histogram!("onelock_renewal_slack_ratio", labels(of, [])).record(*slack);
                }
            }
            Event::Request { verb, failure, .. } => {
                let outcome = if failure.is_some() { "failed" } else { "ok" };
                let store = Arc::clone(&self.store);
                let make = || counter!("onelock_store_requests_total", "store" => store, "verb" => *verb, "outcome" => outcome);
                let cell = match *verb {
                    "acquire" => Some(&self.acquires),
                    "release" => Some(&self.releases),
                    _ => None,
                };
                let cell = cell.filter(|_| failure.is_none() && recorder() == self.recorder);
                with(cell, make, |counter| counter.increment(1));
            }
            Event::Reconnected { .. } => {
                counter!("onelock_reconnects_total", "store" => Arc::clone(&self.store)).increment(1);
            }
            _ => {}
        }
    }
}
