//! What workloads and metrics are called, and which way is better. The only place that knows workloads by name.

use super::number;
use crate::data::{Figure, Metric};

/// A point of a workload at which subjects are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) workload: &'static str,
    pub(super) size: &'static str,
}

const fn at(workload: &'static str, size: &'static str) -> Point {
    Point { workload, size }
}

/// Of the driver alone: what a hand-over can be divided by.
pub(super) const ROUND_TRIP: Point = at("round-trip", "");
pub(super) const CYCLE: Point = at("cycle", "");
pub(super) const NAMES: Point = at("names", "64");
pub(super) const CONTENDED: Point = at("contended", "8");
/// From the moment in which the holder begins to release.
pub(super) const HAND_OVER: Point = at("hand-over", "from begin");
pub(super) const DUTY: Point = at("duty", "");
pub(super) const CONNECT: Point = at("connect", "");
pub(super) const TAKEOVER: Point = at("takeover", "");
pub(super) const IDLE: Point = at("idle", "64 clients");
pub(super) const HELD: Point = at("held", "");

/// A workload's name in a heading.
pub(super) fn title(id: &str) -> &str {
    match id {
        "round-trip" => "A bare round trip",
        "cycle" => "Uncontended cycle",
        "try-busy" => "Try on a busy lock",
        "reentry" => "Re-entry",
        "names" => "Many names, one client",
        "contended" => "One name, many contenders",
        "hand-over" => "Hand-over",
        "processes" => "Hand-over between processes",
        "duty" => "Time in use",
        "readers" => "Readers and a writer",
        "permits" => "Permits",
        "connect" => "Connection to first lock",
        "takeover" => "Takeover after a crash",
        "idle" => "Idle waiters",
        "held" => "Held locks",
        "waiters" => "Waiters",
        other => other,
    }
}

/// What a metric is called, in its unit.
pub(super) fn metric(metric: Metric) -> &'static str {
    match metric {
        Metric::Rate => "operations/s",
        Metric::OwnerChanges => "owner changes/s",
        Metric::P50 => "p50",
        Metric::P90 => "p90",
        Metric::P99 => "p99",
        Metric::Max => "longest",
        Metric::RoundTrips => "round trips/op",
        Metric::ServerRequests => "server requests/op",
        Metric::ServerRate => "server requests/s",
        Metric::Jain => "Jain index",
        Metric::Inversions => "inversions ‰",
        Metric::InUse => "in use",
        Metric::ClientCpu => "client CPU",
        Metric::Memory => "memory/entry",
    }
}

/// A metric's value for people, with its unit where the name has none.
pub(super) fn value(metric: Metric, value: f64) -> String {
    match metric {
        Metric::P50 | Metric::P90 | Metric::P99 | Metric::Max => number::time(value),
        Metric::InUse | Metric::ClientCpu => number::share(value),
        Metric::Memory => number::bytes(value),
        // Four digits: unfairness is in what is missing to one.
        Metric::Jain => format!("{value:.4}"),
        _ => number::plain(value),
    }
}

/// A figure for people: its median, and in brackets the least and the most of the rounds.
pub(super) fn spread(metric: Metric, figure: &Figure) -> String {
    let told = |value| self::value(metric, value);
    if figure.least == figure.most {
        return told(figure.median);
    }
    format!("{} ({} … {})", told(figure.median), told(figure.least), told(figure.most))
}

/// Whether more of it is better.
pub(super) fn more_is_better(metric: Metric) -> bool {
    matches!(metric, Metric::Rate | Metric::OwnerChanges | Metric::Jain | Metric::InUse)
}

/// Whether a size is a number of tasks that keep their order: `64`, not `64 unfair`.
pub(super) fn in_order(size: &str) -> bool {
    size.bytes().all(|byte| byte.is_ascii_digit())
}
