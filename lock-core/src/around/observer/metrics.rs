//! Metrics by the crate `metrics`.

use std::sync::Arc;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::{Event, Observer, Subject};
use crate::model::loss::LossReason;

pub(super) struct Metrics;

impl Metrics {
    /// With the texts and units of all metrics told to the recorder that is installed.
    pub(super) fn described() -> Self {
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
        Self
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

fn with(of: &Subject, name: &'static str, value: &'static str) -> Vec<Label> {
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
                let mut labels = of(subject);
                labels.push(Label::from_static_parts("outcome", outcome.as_str()));
                histogram!("onelock_acquire_seconds", labels).record(*wait);
            }
            Event::Held { of: subject, .. } => gauge!("onelock_held", of(subject)).increment(1.0),
            Event::Ended { of: subject, held, reason: why, .. } => {
                gauge!("onelock_held", of(subject)).decrement(1.0);
                histogram!("onelock_hold_seconds", of(subject)).record(*held);
                if why.is_loss() {
                    counter!("onelock_lost_total", with(subject, "reason", reason(*why))).increment(1);
                }
            }
            Event::Renewed { of: subject, slack, failure, held, .. } => {
                let outcome = match (failure, held) {
                    (Some(_), _) => "failed",
                    (None, true) => "renewed",
                    (None, false) => "not_held",
                };
                counter!("onelock_renewals_total", with(subject, "outcome", outcome)).increment(1);
                if outcome == "renewed" {
                    let labels = vec![label("store", &subject.store), label("group", &subject.group)];
                    histogram!("onelock_renewal_slack_ratio", labels).record(*slack);
                }
            }
            Event::Request { store, verb, failure, .. } => {
                let outcome = if failure.is_some() { "failed" } else { "ok" };
                counter!("onelock_store_requests_total", "store" => (*store).to_owned(), "verb" => *verb, "outcome" => outcome)
                    .increment(1);
            }
            Event::Reconnected { store } => {
                counter!("onelock_reconnects_total", "store" => (*store).to_owned()).increment(1);
            }
            _ => {}
        }
    }
}
