//! The workloads.

mod alone;
pub mod apart;
mod crowd;
mod crowds;
mod held;
mod idle;
mod takeover;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::data::WorkloadInfo;
use crate::measure::Sample;
use crate::subject::{Client, Failure, LEASE, Need, Subject};

/// Something to put a subject to.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// What it is called.
    pub id: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// What one operation is.
    pub operation: &'static str,
    /// What its latencies are, from when to when, if it has any.
    pub latency: Option<&'static str>,
    /// What it asks of a subject.
    pub needs: &'static [Need],
    /// Whether one round of it is enough: it takes long, and counts more than it times.
    pub once: bool,
    /// Its sizes.
    pub sizes: fn(&Effort) -> Vec<Size>,
    run: fn(&Task) -> Running<'_>,
}

type Running<'a> = BoxFuture<'a, Result<Sample, Failure>>;

impl Workload {
    const fn new(id: &'static str, about: &'static str, run: fn(&Task) -> Running<'_>) -> Self {
        let operation = "acquire and release";
        Self {
            id,
            about,
            operation,
            latency: None,
            needs: &[],
            once: false,
            sizes: |_| vec![Size::of("", 1)],
            run,
        }
    }

    /// Puts `subject` to it, with clients of its own and names that nobody else uses; they are gone when it ends.
    ///
    /// # Errors
    /// What the subject says, or that there is nothing to measure.
    ///
    /// # Cancel safety
    /// What was measured is lost.
    pub async fn run(
        &self,
        subject: &Arc<dyn Subject>,
        size: &Size,
        effort: &Effort,
    ) -> Result<Sample, Failure> {
        let (subject, name) = (Arc::clone(subject), fresh_name(self.id));
        (self.run)(&Task { subject, name, size: size.clone(), effort: effort.clone() }).await
    }

    /// What the report says about it.
    #[must_use]
    pub fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            id: self.id.to_owned(),
            about: self.about.to_owned(),
            operation: self.operation.to_owned(),
            latency: self.latency.map(ToOwned::to_owned),
        }
    }
}

/// All workloads, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Workload> {
    vec![
        alone::ROUND_TRIP,
        alone::CYCLE,
        alone::TRY_BUSY,
        alone::REENTRY,
        crowds::NAMES,
        crowds::CONTENDED,
        crowds::HAND_OVER,
        apart::PROCESSES,
        crowds::DUTY,
        crowds::READERS,
        crowds::PERMITS,
        alone::CONNECT,
        takeover::TAKEOVER,
        idle::IDLE,
        held::HELD,
    ]
}

/// One sample that is to be taken.
struct Task {
    subject: Arc<dyn Subject>,
    /// A lock's name that no other sample uses.
    name: String,
    size: Size,
    effort: Effort,
}

impl Task {
    async fn connect(&self) -> Result<Arc<dyn Client>, Failure> {
        self.subject.connect(LEASE).await
    }

    /// How many requests the server has been asked so far.
    async fn served(&self) -> Result<Option<u64>, Failure> {
        self.subject.served().await
    }

    /// How many requests the server was asked since it had been asked `before`.
    async fn served_since(&self, before: Option<u64>) -> Result<Option<f64>, Failure> {
        let after = self.served().await?;
        Ok(after.zip(before).map(|(after, before)| after.saturating_sub(before) as f64))
    }
}

/// One of a workload's sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// What it is called within the workload; empty when it is the only one.
    pub name: String,
    /// How many tasks or waiters work.
    pub tasks: u32,
    /// Whether the order of asking is kept.
    pub fair: bool,
}

impl Size {
    /// So many tasks that keep their order.
    #[must_use]
    pub fn of(name: &str, tasks: u32) -> Self {
        Self { name: name.to_owned(), tasks, fair: true }
    }

    fn count(&self) -> usize {
        self.tasks as usize
    }
}

/// How much work a sample is.
#[derive(Debug, Clone)]
pub struct Effort {
    /// How long what is timed goes on.
    pub time: Duration,
    /// How long it goes on before it counts.
    pub warm_up: Duration,
    /// Whether the largest crowds are left out.
    pub small: bool,
    /// How many locks are held at once, and for which lease.
    pub held: (u32, Duration),
    /// The lease of those that wait idly.
    pub idle: Duration,
    /// How many connections are made, one after the other.
    pub connections: u32,
    /// The lease of clients that die, and how many do.
    pub crashes: (u32, Duration),
    /// How many bytes this process has allocated; where nobody counts them there are no figures about memory.
    pub memory: Option<fn() -> usize>,
    /// How this program is started so that it calls [`apart::serve`]; where there is no way there are no figures of clients
    /// in processes of their own.
    pub contender: Option<fn() -> std::io::Result<std::process::Command>>,
}

impl Effort {
    /// What a comparison needs.
    #[must_use]
    pub fn full() -> Self {
        Self {
            time: Duration::from_secs(1),
            warm_up: Duration::from_millis(200),
            small: false,
            held: (10_000, LEASE),
            idle: Duration::from_secs(10),
            connections: 20,
            crashes: (4, Duration::from_secs(2)),
            memory: None,
            contender: None,
        }
    }

    /// Enough to see that everything works, and for what is counted.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            time: Duration::from_millis(100),
            warm_up: Duration::from_millis(20),
            small: true,
            held: (100, Duration::from_secs(2)),
            idle: Duration::from_secs(1),
            connections: 3,
            crashes: (1, Duration::from_millis(500)),
            memory: None,
            contender: None,
        }
    }
}

/// A name that no other sample uses, of this process or another.
fn fresh_name(workload: &str) -> String {
    static SAMPLES: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let number = SAMPLES.fetch_add(1, Ordering::Relaxed);
    format!("bench-{workload}-{:x}-{:x}-{number}", std::process::id(), now.as_millis())
}
