//! The workloads.

mod alone;
pub mod apart;
mod connect;
mod crowd;
mod crowds;
mod held;
mod idle;
mod names;
mod takeover;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::data::WorkloadInfo;
use crate::measure::Sample;
use crate::subject::{Failure, LEASE, Need, Subject};

/// What is known of a workload before it runs.
#[derive(Debug, Clone, Copy)]
pub struct About {
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
}

impl About {
    const fn new(id: &'static str, about: &'static str) -> Self {
        Self { id, about, operation: "acquire and release", latency: None, needs: &[], once: false }
    }

    const fn latency(self, latency: &'static str) -> Self {
        Self { latency: Some(latency), ..self }
    }

    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    const fn operation(self, operation: &'static str) -> Self {
        Self { operation, ..self }
    }

    const fn once(self) -> Self {
        Self { once: true, ..self }
    }
}

/// Something to put a subject to.
#[async_trait]
pub trait Workload: Send + Sync {
    /// What is known of it.
    fn about(&self) -> About;

    /// Its sizes.
    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(1)
    }

    /// Puts `subject` to it, with clients of its own and names that nobody else uses; they are gone when it ends.
    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure>;
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
    /// The only size.
    #[must_use]
    pub fn only(tasks: u32) -> Vec<Self> {
        vec![Self { name: String::new(), tasks, fair: true }]
    }

    /// Called by its number of tasks.
    #[must_use]
    pub fn of(tasks: u32) -> Self {
        Self { name: tasks.to_string(), tasks, fair: true }
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
    /// How many tasks of one client wait at once, for their memory.
    pub waiters: u32,
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
            waiters: 256,
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
            waiters: 64,
            idle: Duration::from_secs(1),
            connections: 3,
            crashes: (1, Duration::from_millis(500)),
            memory: None,
            contender: None,
        }
    }
}

/// All workloads, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(alone::RoundTrip),
        Box::new(alone::Cycle),
        Box::new(alone::TryBusy),
        Box::new(alone::Reentry),
        Box::new(names::Names),
        Box::new(crowds::CONTENDED),
        Box::new(crowds::HAND_OVER),
        Box::new(apart::Processes),
        Box::new(crowds::DUTY),
        Box::new(crowds::READERS),
        Box::new(crowds::PERMITS),
        Box::new(connect::Connect),
        Box::new(takeover::Takeover),
        Box::new(idle::Idle),
        Box::new(held::HeldLocks),
        Box::new(waiters::Waiters),
    ]
}

impl dyn Workload + '_ {
    /// What it is called.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.about().id
    }

    /// What the report says about it.
    #[must_use]
    pub fn info(&self) -> WorkloadInfo {
        let about = self.about();
        WorkloadInfo {
            id: about.id.to_owned(),
            about: about.about.to_owned(),
            operation: about.operation.to_owned(),
            latency: about.latency.map(ToOwned::to_owned),
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

/// Requests that the server counted, per operation.
fn per_operation(before: Option<u64>, after: Option<u64>, operations: u64) -> Option<f64> {
    let requests = after?.saturating_sub(before?);
    (operations > 0).then(|| requests as f64 / operations as f64)
}
