//! What an observer, a recorder of metrics and a subscriber to spans see.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use onelock::{Event, Observer};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::{Done, check};

/// A reconnection is rare, so its counter is not among them.
const METRICS: [&str; 8] = [
    "onelock_acquire_seconds",
    "onelock_hold_seconds",
    "onelock_held",
    "onelock_waiting",
    "onelock_renewals_total",
    "onelock_renewal_slack_ratio",
    "onelock_lost_total",
    "onelock_store_requests_total",
];

#[derive(Default)]
pub struct Watched {
    acquired: AtomicU32,
    ended: AtomicU32,
}

impl Observer for Watched {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Held { .. } => self.acquired.fetch_add(1, Ordering::Relaxed),
            Event::Ended { .. } => self.ended.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

impl Watched {
    pub fn check(&self) -> Done {
        let [acquired, ended] = [&self.acquired, &self.ended].map(|count| count.load(Ordering::Relaxed));
        check(acquired > 10 && ended >= acquired, &format!("{acquired} holds were seen, {ended} ends"))
    }
}

pub struct Recorded {
    metrics: Snapshotter,
    spans: Spans,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<BTreeSet<&'static str>>>);

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(span.metadata().name());
    }
}

impl Recorded {
    pub fn install() -> Done<Self> {
        let recorder = DebuggingRecorder::new();
        let recorded = Self { metrics: recorder.snapshotter(), spans: Spans::default() };
        recorder.install()?;
        let subscriber = tracing_subscriber::registry().with(recorded.spans.clone());
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(recorded)
    }

    pub fn check(&self) -> Done {
        let names: BTreeSet<_> = self
            .metrics
            .snapshot()
            .into_vec()
            .into_iter()
            .map(|(key, ..)| key.key().name().to_owned())
            .collect();
        for name in METRICS {
            check(names.contains(name), &format!("the metric {name} is recorded"))?;
        }
        let spans = self.spans.0.lock().unwrap_or_else(PoisonError::into_inner);
        check(spans.contains("onelock.acquire") && spans.contains("onelock.hold"), "the spans are recorded")
    }
}
