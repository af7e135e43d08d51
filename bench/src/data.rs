//! What a run leaves behind. Written as JSON; the report is drawn from it, and a later run is compared with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the format. A reader refuses others.
pub const FORMAT: u32 = 2;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// When it began, in RFC 3339, UTC.
    pub began: String,
    /// The version of this library.
    pub version: String,
    /// Where it ran.
    pub machine: Machine,
    /// How often each workload ran on each subject, taking turns.
    pub rounds: u32,
    /// Whether it was ended before it was through.
    pub interrupted: bool,
    /// What was measured.
    pub subjects: Vec<SubjectInfo>,
    /// By which workloads, in the order they ran.
    pub workloads: Vec<WorkloadInfo>,
    /// What came out, a workload and a subject each.
    pub outcomes: Vec<Outcome>,
    /// What was left out, and why.
    pub left_out: Vec<LeftOut>,
}

impl Run {
    /// Whether the machine did other things, too, when it began: then times are worth little.
    #[must_use]
    pub fn is_of_a_busy_machine(&self) -> bool {
        self.machine.load > 0.5 * self.machine.cores as f64
    }
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// How many of them can be used.
    pub cores: usize,
    /// Main memory, in bytes.
    pub memory: u64,
    /// Operating system and its version.
    pub system: String,
    /// How busy it was with other things when the run began: the load average of the last minute.
    pub load: f64,
}

/// A way to lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubjectInfo {
    /// Names it within the run.
    pub id: String,
    /// The store: `redis`, `postgres+session`.
    pub store: String,
    /// What it is.
    pub kind: Kind,
    /// The library or driver, with its version.
    pub library: String,
    /// The server's name and version.
    pub server: Option<String>,
}

/// What a subject is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// This library.
    Ours,
    /// Two bare requests by the driver alone.
    Baseline,
    /// Another library.
    Peer,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Names it: `cycle`, `contended`.
    pub id: String,
    /// What it does, in a sentence.
    pub about: String,
    /// What one operation is, for its rates: `acquire and release`.
    pub operation: String,
    /// What its latencies are, from when to when, if it has any.
    pub latency: Option<String>,
}

/// What came out of a workload on a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The workload: `cycle`, `contended`.
    pub workload: String,
    /// Which of its sizes: `8`, `64 unfair`; empty when it has one.
    pub size: String,
    /// How many tasks or waiters worked, for plots against it.
    pub tasks: u32,
    /// The subject's id.
    pub subject: String,
    /// Its figures.
    pub figures: BTreeMap<Metric, Figure>,
    /// What must be known to read the figures.
    pub remark: Option<String>,
}

/// What a figure tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Operations per second.
    Rate,
    /// Times per second that the lock went to another owner.
    OwnerChanges,
    /// Latency of half of the operations, in microseconds.
    P50,
    /// Latency of nine in ten, in microseconds.
    P90,
    /// Latency of ninety-nine in a hundred, in microseconds.
    P99,
    /// The longest latency, in microseconds.
    Max,
    /// Times that the client sent and waited for an answer, per operation: several requests sent together are one.
    RoundTrips,
    /// Requests that the server counted, per operation.
    ServerRequests,
    /// Requests that the server counted, per second.
    ServerRate,
    /// Jain's index of the contenders' shares: 1 is fair.
    Jain,
    /// Grants that overtook an older request, per thousand; see `onelock_bench::trace`.
    Inversions,
    /// Share of the time in which the lock was in use.
    InUse,
    /// Processor time of the client, as a share of one core.
    ClientCpu,
    /// Memory of the client per entry held or waiting, in bytes.
    Memory,
}

impl Metric {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 14] = [
        Self::Rate,
        Self::OwnerChanges,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::Max,
        Self::RoundTrips,
        Self::ServerRequests,
        Self::ServerRate,
        Self::Jain,
        Self::Inversions,
        Self::InUse,
        Self::ClientCpu,
        Self::Memory,
    ];
}

/// A figure: its median over the rounds, and how far they were apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median of the rounds.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

/// A workload that a subject was not put to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The workload.
    pub workload: String,
    /// Which of its sizes; empty for all of them.
    pub size: String,
    /// The subject's id.
    pub subject: String,
    /// Why.
    pub why: String,
}
