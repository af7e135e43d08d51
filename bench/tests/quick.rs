//! A whole run in its short form on what needs no server. Only counts are asserted: times are the machine's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onelock_bench::data::{Metric, Outcome, Run};
use onelock_bench::ours::Ours;
use onelock_bench::run::{Plan, Step, Stop, workloads};
use onelock_bench::subject::Subject;
use onelock_bench::workload::{Effort, apart};
use tokio::sync::watch;

/// There is no allocator that counts here; this shows that what it says arrives.
fn memory() -> usize {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    CALLS.fetch_add(64, Ordering::Relaxed)
}

/// Set in the processes that contend.
const ROLE: &str = "ONELOCK_BENCH_TEST_CONTENDER";

fn contender() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["contends_when_asked", "--exact", "--nocapture"]).env(ROLE, "yes");
    Ok(command)
}

/// Does nothing unless it is started as a contender.
#[test]
fn contends_when_asked() {
    if std::env::var_os(ROLE).is_some() {
        apart::serve().unwrap();
    }
}

fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(Ours::new(None, "memory://").unwrap()),
        #[cfg(feature = "sqlite")]
        Arc::new(Ours::temporary_sqlite().unwrap()),
    ]
}

fn plan(ids: &[&str], rounds: u32) -> Plan {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let effort = Effort { memory: Some(memory), contender: Some(contender), ..Effort::quick() };
    Plan { subjects: subjects(), workloads: workloads(&ids).unwrap(), rounds, effort, left_out: Vec::new() }
}

async fn run(plan: Plan) -> Run {
    let (_stop, stopped) = watch::channel(Stop::Never);
    plan.run(stopped, |_: Step<'_>| {}).await.unwrap()
}

/// All workloads.
#[tokio::test]
async fn every_outcome_is_there() {
    let run = run(plan(&[], 1)).await;
    let left_out: Vec<_> = run.left_out.iter().map(|left| (&*left.workload, &*left.subject)).collect();
    // Only what the driver does alone has a bare round trip, and memory is within one process.
    let mut wanted: Vec<_> = run.subjects.iter().map(|subject| ("round-trip", &*subject.id)).collect();
    wanted.push(("processes", "memory"));
    assert_eq!(left_out, wanted, "{:?}", run.left_out);
    assert!(!run.interrupted);
    assert_eq!(run.subjects.len(), subjects().len());
    let of = |workload: &str, subject: &str| -> Vec<&Outcome> {
        run.outcomes.iter().filter(|o| o.workload == workload && o.subject == subject).collect()
    };
    for subject in &run.subjects {
        let mut turns = 0;
        let apart = if subject.store == "memory" { 0 } else { 3 };
        for (workload, sizes, metrics) in [
            ("cycle", 1, &[Metric::Rate, Metric::P50, Metric::P99, Metric::Max, Metric::ClientCpu][..]),
            ("try-busy", 1, &[Metric::Rate, Metric::P50]),
            ("reentry", 1, &[Metric::Rate, Metric::P50]),
            ("names", 3, &[Metric::Rate, Metric::P50]),
            ("contended", 4, &[Metric::Rate, Metric::OwnerChanges, Metric::Jain, Metric::Inversions]),
            ("hand-over", 2, &[Metric::OwnerChanges, Metric::P50, Metric::Jain]),
            ("processes", apart, &[Metric::OwnerChanges, Metric::P50, Metric::Jain]),
            ("duty", 1, &[Metric::InUse, Metric::Jain]),
            ("readers", 1, &[Metric::Rate, Metric::P50]),
            ("permits", 1, &[Metric::Rate, Metric::Jain]),
            ("connect", 1, &[Metric::P50]),
            ("takeover", 1, &[Metric::P50]),
            ("idle", 1, &[Metric::ClientCpu, Metric::Memory]),
            ("held", 1, &[Metric::ClientCpu, Metric::Memory]),
        ] {
            let outcomes = of(workload, &subject.id);
            assert_eq!(outcomes.len(), sizes, "{workload} on {}", subject.id);
            for outcome in outcomes {
                // On a busy machine nobody may have had a turn in so short a time: then there is nothing to share.
                let none = |metric| outcome.figures.get(&metric).is_some_and(|figure| figure.most == 0.0);
                let idle = none(Metric::Rate);
                turns += usize::from(!idle);
                // Or nobody handed over, or the writer had no turn among its readers, and there is no time that it took.
                let untimed = none(Metric::OwnerChanges) || workload == "readers";
                let there = |metric| metric == Metric::Rate || !(idle || metric == Metric::P50 && untimed);
                for metric in metrics.iter().filter(|metric| there(**metric)) {
                    assert!(outcome.figures.contains_key(metric), "{metric:?} in {outcome:?}");
                }
                let share =
                    |metric| outcome.figures.get(&metric).is_none_or(|f| f.least >= 0.0 && f.most <= 1.0);
                assert!(share(Metric::Jain) && share(Metric::InUse), "{outcome:?}");
                assert_eq!(outcome.remark.as_ref().filter(|text| text.contains("while another")), None);
            }
        }
        assert!(turns > 10, "{turns} outcomes on {} with anything in them", subject.id);
    }
    let timed = |o: &Outcome| o.workload == "readers" && o.figures.contains_key(&Metric::P50);
    assert!(run.outcomes.iter().any(timed), "no writer had a turn on any store");
    let json = serde_json::to_string(&run).unwrap();
    assert_eq!(serde_json::from_str::<Run>(&json).unwrap(), run);
}

/// A figure is the median of its rounds.
#[tokio::test]
async fn rounds_are_joined() {
    let run = run(plan(&["connect"], 3)).await;
    for outcome in &run.outcomes {
        let p50 = &outcome.figures[&Metric::P50];
        assert!(p50.least <= p50.median && p50.median <= p50.most);
    }
    assert_eq!(run.outcomes.len(), subjects().len());
}

/// What was done stays, what was not is said.
#[tokio::test]
async fn an_ended_run_keeps_what_it_has() {
    let (stop, stopped) = watch::channel(Stop::Never);
    let mut steps = Vec::new();
    let progress = |step: Step<'_>| {
        steps.push((step.workload.to_owned(), step.subject.to_owned(), step.done, step.all));
        if steps.len() == 1 {
            stop.send(Stop::Soon).unwrap();
        }
    };
    let run = plan(&["try-busy", "cycle"], 3).run(stopped, progress).await.unwrap();
    assert!(run.interrupted);
    let all = 2 * 3 * subjects().len();
    assert_eq!(steps, [("cycle".to_owned(), "memory".to_owned(), 0, all)]);
    assert_eq!(run.outcomes.len(), 1);
    assert_eq!(run.outcomes.len() + run.left_out.len(), 2 * subjects().len());
}

#[tokio::test]
async fn bad_plans_are_refused() {
    let unknown = workloads(&["cycle".into(), "cylce".into()]).err().unwrap().to_string();
    assert!(unknown.contains("cylce") && unknown.contains("try-busy"), "{unknown}");
    let mut twice = plan(&["cycle"], 1);
    twice.subjects.extend(subjects());
    let mut none = plan(&["cycle"], 1);
    none.subjects.clear();
    for (plan, wanted) in [
        (twice, "two subjects are called \"memory\""),
        (none, "nothing to run"),
        (plan(&["cycle"], 0), "nothing to run"),
    ] {
        let (_stop, stopped) = watch::channel(Stop::Never);
        let error = plan.run(stopped, |_| panic!("it ran")).await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
