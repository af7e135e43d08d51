//! A run made up for the tests, with the holes and the odd values that real ones have.

use std::collections::BTreeMap;

use crate::data::{FORMAT, Figure, Kind, LeftOut, Machine, Metric, Outcome, Run, SubjectInfo, WorkloadInfo};

/// What must never be read as markup, nor end a cell of a table.
pub(super) const EVIL: &str = "<b>\"x\" & 'y'|]]>\u{7}";

/// As a file keeps it: reading does not promise the last bit of a longer number.
fn short(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

pub(super) fn figure(median: f64) -> Figure {
    Figure { median: short(median), least: short(median * 0.95), most: short(median * 1.05) }
}

pub(super) fn exact(value: f64) -> Figure {
    Figure { median: value, least: value, most: value }
}

pub(super) fn outcome(workload: &str, size: &str, tasks: u32, subject: &str) -> Outcome {
    Outcome {
        workload: workload.into(),
        size: size.into(),
        tasks,
        subject: subject.into(),
        figures: BTreeMap::new(),
        remark: None,
    }
}

fn with(mut outcome: Outcome, figures: &[(Metric, f64)]) -> Outcome {
    outcome.figures.extend(figures.iter().map(|&(metric, value)| (metric, figure(value))));
    outcome
}

fn latencies(mut outcome: Outcome, p50: f64) -> Outcome {
    let tail = [(Metric::P50, 1.0), (Metric::P90, 1.4), (Metric::P99, 3.0), (Metric::Max, 40.0)];
    outcome.figures.extend(tail.map(|(metric, times)| (metric, figure(p50 * times))));
    outcome
}

pub(super) fn subject(id: &str, store: &str, kind: Kind, library: &str) -> SubjectInfo {
    SubjectInfo {
        id: id.into(),
        store: store.into(),
        kind,
        library: library.into(),
        server: (store != "memory").then(|| format!("{store} 1.0")),
    }
}

/// All workloads of a subject, about `speed` times as fast as a Redis.
fn whole(run: &mut Run, id: &str, speed: f64) {
    let p50 = 35.0 / speed;
    let counts = [(Metric::RoundTrips, 2.0), (Metric::ServerRequests, 2.0), (Metric::Rate, 28_000.0 * speed)];
    run.outcomes.push(with(latencies(outcome("cycle", "", 1, id), p50), &counts));
    for tasks in [1, 8, 64, 512] {
        let rate = 28_000.0 * speed * f64::from(tasks.min(8));
        run.outcomes.push(with(outcome("names", &tasks.to_string(), tasks, id), &[(Metric::Rate, rate)]));
    }
    for (size, tasks) in [("2", 2), ("8", 8), ("64", 64), ("8 unfair", 8)] {
        let figures =
            [(Metric::OwnerChanges, 9_000.0 * speed), (Metric::Jain, 0.99), (Metric::Inversions, 0.0)];
        run.outcomes.push(with(outcome("contended", size, tasks, id), &figures));
    }
    run.outcomes.push(latencies(outcome("hand-over", "from begin", 2, id), p50 * 1.4));
    run.outcomes.push(with(outcome("duty", "", 8, id), &[(Metric::InUse, 0.9)]));
    let idle = [(Metric::ServerRate, 6.4), (Metric::ClientCpu, 0.004)];
    run.outcomes.push(with(outcome("idle", "64 clients", 64, id), &idle));
    let held = [(Metric::ServerRate, 13.0), (Metric::ClientCpu, 0.03), (Metric::Memory, 1_500.0)];
    run.outcomes.push(with(outcome("held", "", 10_000, id), &held));
}

/// Nothing was measured.
pub(super) fn empty() -> Run {
    Run {
        format: FORMAT,
        began: "2026-01-02T03:04:05Z".into(),
        version: "0.1.0".into(),
        machine: Machine {
            cpu: "A processor".into(),
            cores: 2,
            memory: 8 << 30,
            system: "Linux 6".into(),
            load: 0.1,
        },
        rounds: 3,
        interrupted: false,
        subjects: Vec::new(),
        workloads: Vec::new(),
        outcomes: Vec::new(),
        left_out: Vec::new(),
    }
}

/// Several stores, a driver alone, other libraries.
pub(super) fn run() -> Run {
    let mut run = empty();
    run.subjects = vec![
        subject("memory", "memory", Kind::Ours, "onelock 0.1.0"),
        subject("redis", "redis", Kind::Ours, "onelock 0.1.0"),
        subject("postgres", "postgres", Kind::Ours, "onelock 0.1.0"),
        subject("postgres+session", "postgres+session", Kind::Ours, "onelock 0.1.0"),
        subject("redis-baseline", "redis", Kind::Baseline, "redis-driver 1.8"),
        subject("slow", "redis", Kind::Peer, "slowlock 1.0"),
        subject("fast", "redis", Kind::Peer, "fastlock 2.0"),
        subject("advisory", "postgres+session", Kind::Peer, "advisorylock 3.0"),
    ];
    run.workloads = vec![WorkloadInfo {
        id: "cycle".into(),
        about: "Takes and gives back.".into(),
        operation: "both".into(),
        latency: Some("of both".into()),
    }];
    for (id, speed) in [
        ("memory", 25.0),
        ("redis", 1.0),
        ("postgres", 0.1),
        ("postgres+session", 1.1),
        ("redis-baseline", 1.2),
        ("slow", 0.4),
        ("fast", 1.5),
        ("advisory", 0.7),
    ] {
        whole(&mut run, id, speed);
    }
    run.left_out.push(LeftOut {
        workload: "reentry".into(),
        size: String::new(),
        subject: "slow".into(),
        why: "it has no re-entry".into(),
    });
    run
}

/// The same with all that can be missing missing and all that can be odd odd.
pub(super) fn odd() -> Run {
    let mut run = run();
    run.machine.cpu = EVIL.into();
    run.machine.system = EVIL.into();
    run.version = EVIL.into();
    run.began = EVIL.into();
    run.machine.load = f64::NAN;
    run.interrupted = true;
    run.rounds = 1;
    run.subjects[5].library = EVIL.into();
    run.subjects[3].store = format!("postgres+{EVIL}");
    run.subjects.push(subject("nothing", "etcd", Kind::Ours, "measured in nothing"));
    run.subjects.push(subject("alone", "zookeeper", Kind::Peer, "without ours beside it"));
    whole(&mut run, "alone", 0.2);
    whole(&mut run, "of no subject", 1.0);
    for (n, outcome) in run.outcomes.iter_mut().enumerate() {
        match n % 5 {
            1 => outcome.figures.values_mut().for_each(|figure| *figure = exact(0.0)),
            2 => {
                let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, 5e-324];
                for (figure, odd) in outcome.figures.values_mut().zip(odd) {
                    *figure = Figure { median: odd, least: f64::NAN, most: f64::INFINITY };
                }
            }
            3 => outcome.remark = Some(EVIL.into()),
            _ => outcome.figures.clear(),
        }
    }
    run.outcomes.push(with(outcome(EVIL, EVIL, 0, "memory"), &[(Metric::Rate, 1.0)]));
    run.left_out.push(LeftOut {
        workload: EVIL.into(),
        size: EVIL.into(),
        subject: EVIL.into(),
        why: EVIL.into(),
    });
    run
}
