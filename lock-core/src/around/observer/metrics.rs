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
}

/// Records with the handle in `cell`, where there is one to use, or with a new one.
fn with<T>(cell: Option<&OnceLock<T>>, make: impl FnOnce() -> T, record: impl FnOnce(&T)) {
    match cell {
        Some(cell) => record(cell.get_or_init(make)),
        None => record(&make()),
    }
}

fn label(name: &'static str, value: &Arc<str>) -> Label {
    Label::new(name, Arc::clone(value))
}

fn of(of: &Subject) -> Vec<Label> {
    vec![
        label("store", &of.store),
        Label::from_static_parts("mode", of.mode_label()),
        label("group", &of.group),
    ]
}

fn and(of: &Subject, name: &'static str, value: &'static str) -> Vec<Label> {
    vec![label("store", &of.store), Label::from_static_parts(name, value), label("group", &of.group)]
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
            Event::Waiting(subject) => gauge!("onelock_waiting", of(subject)).increment(1.0),
            Event::Acquired { of: subject, outcome, wait, waited, .. } => {
                if *waited {
                    gauge!("onelock_waiting", of(subject)).decrement(1.0);
                }
                let make = || {
                    let mut labels = of(subject);
                    labels.push(Label::from_static_parts("outcome", outcome.as_str()));
                    histogram!("onelock_acquire_seconds", labels)
                };
                let handles = self.handles(subject).filter(|_| *outcome == Outcome::Acquired);
                with(handles.map(|of| &of.acquired), make, |histogram| histogram.record(*wait));
            }
            Event::Held { of: subject, .. } => {
                let make = || gauge!("onelock_held", of(subject));
                with(self.handles(subject).map(|of| &of.held), make, |gauge| gauge.increment(1.0));
            }
            Event::Ended { of: subject, held, reason: why, .. } => {
                let handles = self.handles(subject);
                let make = || gauge!("onelock_held", of(subject));
                with(handles.map(|of| &of.held), make, |gauge| gauge.decrement(1.0));
                let make = || histogram!("onelock_hold_seconds", of(subject));
                with(handles.map(|of| &of.hold), make, |histogram| histogram.record(*held));
                if why.is_loss() {
                    counter!("onelock_lost_total", and(subject, "reason", reason(*why))).increment(1);
                }
            }
            Event::Renewed { of: subject, slack, failure, held, .. } => {
                let outcome = match (failure, held) {
                    (Some(_), _) => "failed",
                    (None, true) => "renewed",
                    (None, false) => "not_held",
                };
                counter!("onelock_renewals_total", and(subject, "outcome", outcome)).increment(1);
                if outcome == "renewed" {
                    let labels = vec![label("store", &subject.store), label("group", &subject.group)];
                    histogram!("onelock_renewal_slack_ratio", labels).record(*slack);
                }
            }
            Event::Request { verb, failure, .. } => {
                let outcome = if failure.is_some() { "failed" } else { "ok" };
                let make = || {
                    let labels = vec![
                        label("store", &self.store),
                        Label::from_static_parts("verb", verb),
                        Label::from_static_parts("outcome", outcome),
                    ];
                    counter!("onelock_store_requests_total", labels)
                };
                let cell = match *verb {
                    "acquire" => Some(&self.acquires),
                    "release" => Some(&self.releases),
                    _ => None,
                };
                let cell = cell.filter(|_| failure.is_none() && recorder() == self.recorder);
                with(cell, make, |counter| counter.increment(1));
            }
            Event::Reconnected { .. } => {
                counter!("onelock_reconnects_total", vec![label("store", &self.store)]).increment(1);
            }
            _ => {}
        }
    }
}
