//! The features `metrics` and `tracing`, read from real recorders: every metric and every span.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use onelock_core::*;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// `tracing` keeps for each place in the code whether anybody listens, and a test without a subscriber says nobody does.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const SECOND: Duration = Duration::from_secs(1);

/// The memory store, which can be away.
#[derive(Debug)]
struct Store(MemoryBackend, AtomicBool);

impl Store {
    fn reached(&self) -> Result<&MemoryBackend> {
        if self.1.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "away"));
        }
        Ok(&self.0)
    }
}

#[async_trait]
impl Backend for Store {
    fn info(&self) -> Info {
        self.0.info()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.reached()?.acquire(request).await
    }
    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.reached()?.wait(ticket).await
    }
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.reached() {
            Ok(store) => store.renew(due).await,
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.reached()?.release(ticket).await
    }
    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.reached()?.raise(ticket, token).await
    }
    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.reached()?.inspect(name).await
    }
    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.reached()?.list(prefix, page).await
    }
    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.reached()?.evict(name, token).await
    }
    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

/// A service's life: a lock that is held and given back, one that is waited for, one whose store goes away and is lost, one that is
/// evicted.
async fn live() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let memory = MemoryStore::new(Arc::clone(&clock));
    let store = Arc::new(Store(MemoryBackend::new(&memory), AtomicBool::new(false)));
    let settings =
        Settings::default().metric_group(|name| name.split('/').next().unwrap_or_default().to_owned());
    let locks = Locks::builder(store.clone()).clock(clock).settings(settings).build().unwrap();
    let lock = locks.mutex("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    tokio::time::sleep(SECOND * 25).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    store.1.store(true, Ordering::SeqCst);
    guard.lost().await;
    tokio::time::sleep(SECOND).await;
    store.1.store(false, Ordering::SeqCst);
    drop(guard);
    tokio::time::sleep(SECOND * 60).await;
    let evicted = locks.rwlock("reports").unwrap().read().acquire().await.unwrap();
    assert_eq!(locks.evict("reports", evicted.token().unwrap()).await.unwrap(), Release::Released);
    evicted.lost().await;
    locks.close(SECOND).await.unwrap();
}

#[tokio::test]
async fn a_recorder_that_is_installed_later_misses_nothing_from_then_on() {
    let _alone = ALONE.lock().await;
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
    let cycle =
        async |locks: &Locks| locks.mutex("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    let locks = Locks::builder(store).clock(clock).build().unwrap();
    cycle(&locks).await;
    let recorder = DebuggingRecorder::new();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    cycle(&locks).await;
    let seen = read(&recorder.snapshotter());
    assert_eq!(seen["onelock_store_requests_total"].len(), 2, "{seen:?}");
    assert!(
        seen.contains_key("onelock_acquire_seconds") && seen.contains_key("onelock_hold_seconds"),
        "{seen:?}"
    );
}

/// Each metric's values by its labels.
fn read(snapshotter: &Snapshotter) -> BTreeMap<String, Vec<(BTreeSet<String>, DebugValue)>> {
    let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        all.entry(key.key().name().to_owned()).or_default().push((labels, value));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_recorded_with_its_labels() {
    let _alone = ALONE.lock().await;
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    live().await;
    let all = read(&snapshotter);
    let find = |name: &str, labels: &str| {
        let wanted: BTreeSet<_> = labels.split(' ').map(str::to_owned).collect();
        let series = all.get(name).unwrap_or_else(|| panic!("no {name}"));
        let found = series.iter().find(|(labels, _)| *labels == wanted);
        &found.unwrap_or_else(|| panic!("no {name} with {labels}: {series:?}")).1
    };
    let samples = |name: &str, labels: &str| match find(name, labels) {
        DebugValue::Histogram(samples) => samples.iter().map(|s| s.into_inner()).collect::<Vec<f64>>(),
        other => panic!("{name}: {other:?}"),
    };
    let count = |name: &str, labels: &str| match find(name, labels) {
        DebugValue::Counter(count) => *count,
        other => panic!("{name}: {other:?}"),
    };
    let orders = "store=memory mode=exclusive group=orders";
    let waits = samples("onelock_acquire_seconds", &format!("{orders} outcome=acquired"));
    assert!(waits.len() == 2 && waits[0] == 0.0 && waits[1] >= 24.0, "{waits:?}");
    assert_eq!(samples("onelock_acquire_seconds", &format!("{orders} outcome=busy")).len(), 1);
    let holds = samples("onelock_hold_seconds", orders);
    assert!(holds.len() == 2 && holds[0] >= 24.0, "{holds:?}");
    for gauge in ["onelock_held", "onelock_waiting"] {
        assert!(
            matches!(find(gauge, orders), DebugValue::Gauge(left) if left.into_inner() == 0.0),
            "{gauge}"
        );
    }
    assert!(count("onelock_renewals_total", "store=memory outcome=renewed group=orders") >= 2);
    assert!(count("onelock_renewals_total", "store=memory outcome=failed group=orders") >= 1);
    assert_eq!(count("onelock_renewals_total", "store=memory outcome=not_held group=reports"), 1);
    let slack = samples("onelock_renewal_slack_ratio", "store=memory group=orders");
    assert!(slack.iter().all(|slack| (0.5..=1.0).contains(slack)), "{slack:?}");
    assert_eq!(count("onelock_lost_total", "store=memory reason=expired group=orders"), 1);
    assert_eq!(count("onelock_lost_total", "store=memory reason=not_held group=reports"), 1);
    assert!(count("onelock_store_requests_total", "store=memory verb=acquire outcome=ok") >= 3);
    assert!(count("onelock_store_requests_total", "store=memory verb=renew outcome=failed") >= 1);
    assert!(count("onelock_reconnects_total", "store=memory") >= 1);
    // What the dashboard and the alerts may use is what is here.
    let names: BTreeSet<_> = all.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(METRICS));
}

const METRICS: [&str; 9] = [
    "onelock_acquire_seconds",
    "onelock_held",
    "onelock_hold_seconds",
    "onelock_lost_total",
    "onelock_reconnects_total",
    "onelock_renewal_slack_ratio",
    "onelock_renewals_total",
    "onelock_store_requests_total",
    "onelock_waiting",
];

/// The dashboard and the alert rules use metrics that exist, and between them all of them.
#[test]
fn the_dashboard_and_the_alerts_use_what_is_emitted() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let dashboard = std::fs::read_to_string(docs.join("grafana.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = parsed["panels"].as_array().unwrap();
    for panel in panels {
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_u64(), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["expr"].as_str().unwrap().contains("onelock_"), "{target}");
        }
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    let alerts = std::fs::read_to_string(docs.join("alerts.yml")).unwrap();
    let used = |text: &str| -> BTreeSet<String> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !word(c)).filter(|word| word.starts_with("onelock_"));
        // What a histogram is spread over in Prometheus.
        let base = |word: &str| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            base.unwrap_or(word).to_owned()
        };
        words.map(base).collect()
    };
    let all: BTreeSet<String> = METRICS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(used(&dashboard), all);
    assert!(used(&alerts).is_subset(&all), "{:?}", used(&alerts));
}

type Fields = BTreeMap<String, String>;

/// Keeps the spans that have closed, and the events.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(String, Fields)>>>);

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attrs: &tracing::span::Attributes<'_>, id: &tracing::Id, ctx: Context<'_, S>) {
        let mut fields = Fields::new();
        attrs.record(&mut Reader(&mut fields));
        ctx.span(id).unwrap().extensions_mut().insert(fields);
    }
    fn on_record(&self, id: &tracing::Id, values: &tracing::span::Record<'_>, ctx: Context<'_, S>) {
        let span = ctx.span(id).unwrap();
        let mut extensions = span.extensions_mut();
        values.record(&mut Reader(extensions.get_mut::<Fields>().unwrap()));
    }
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let name = fields.remove("message").unwrap();
        self.0.lock().unwrap().push((name, fields));
    }
    fn on_close(&self, id: tracing::Id, ctx: Context<'_, S>) {
        let span = ctx.span(&id).unwrap();
        let fields = span.extensions().get::<Fields>().unwrap().clone();
        self.0.lock().unwrap().push((span.name().to_owned(), fields));
    }
}

#[tokio::test(start_paused = true)]
async fn every_span_and_event_has_its_fields() {
    let _alone = ALONE.lock().await;
    let spans = Spans::default();
    let _local = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    live().await;
    let seen = spans.0.lock().unwrap().clone();
    let of = |name: &str| seen.iter().filter(|(n, _)| n == name).map(|(_, f)| f.clone()).collect::<Vec<_>>();
    let acquires = of("onelock.acquire");
    assert_eq!(acquires.len(), 4, "{acquires:?}");
    for fields in &acquires {
        for name in ["lock.name", "lock.mode", "lock.store", "outcome", "wait_ms", "position"] {
            assert!(fields.contains_key(name), "no {name}: {fields:?}");
        }
    }
    assert!(acquires.iter().any(|f| f["position"] == "1" && f["outcome"] == "acquired"), "{acquires:?}");
    let holds = of("onelock.hold");
    assert_eq!(holds.len(), 3);
    let has = ["held_ms", "lock.mode", "lock.name", "lock.store", "reason", "token"];
    assert!(holds.iter().all(|f| f.keys().eq(has)), "{holds:?}");
    assert_eq!(holds.iter().filter(|f| f["reason"] == "it was given back").count(), 1);
    assert_eq!(of("lock lost").len(), 2);
    for (event, field) in [
        ("renewal failed", "error"),
        ("less than a third of the lease is left", "left_ms"),
        ("entry evicted", "token"),
        ("the store answers again", "lock.store"),
    ] {
        let events = of(event);
        assert!(!events.is_empty() && events.iter().all(|f| f.contains_key(field)), "{event}: {events:?}");
    }
}
