//! A run against an older one.

use super::sample;
use crate::data::{Figure, Metric, Run};
use crate::report::compare;

/// The newer run, with one figure of Redis' cycle changed.
fn changed(metric: Metric, least: f64, median: f64, most: f64) -> (Run, Run) {
    let old = sample::run();
    let mut new = old.clone();
    let cycle =
        new.outcomes.iter_mut().find(|o| o.subject == "redis" && o.workload == "cycle").expect("a cycle");
    cycle.figures.insert(metric, Figure { median, least, most });
    (old, new)
}

/// How many better, worse, the same.
fn counts(told: &str) -> Vec<u32> {
    let line = told.lines().find(|line| line.contains(" better, ")).expect("a line of counts");
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The rows of a table.
fn section<'a>(told: &'a str, title: &str) -> Vec<&'a str> {
    let (_, rest) = told.split_once(&format!("## {title}\n")).expect("a section");
    let lines = rest.split("\n## ").next().expect("it has lines").lines();
    lines.filter(|line| line.starts_with('|')).skip(2).collect()
}

#[test]
fn a_run_against_itself_is_the_same() {
    let told = compare(&sample::run(), &sample::run());
    let counts = counts(&told);
    assert_eq!(counts[..2], [0, 0], "{told}");
    assert!(counts[2] > 50 && !told.contains("## New") && !told.contains("## Gone"), "{told}");
    assert!(!told.contains("differ"), "{told}");
}

#[test]
fn only_ranges_that_do_not_overlap_make_a_difference() {
    // The old p50 is 35 µs, between 33.25 and 36.75.
    for (figure, better, worse) in [
        ((30.0, 31.0, 33.0), 1, 0),
        ((30.0, 31.0, 33.3), 0, 0),
        ((36.7, 40.0, 45.0), 0, 0),
        ((36.8, 40.0, 45.0), 0, 1),
    ] {
        let (old, new) = changed(Metric::P50, figure.0, figure.1, figure.2);
        let told = compare(&old, &new);
        assert_eq!(counts(&told)[..2], [better, worse], "{figure:?}\n{told}");
    }
}

#[test]
fn more_is_better_for_rates_and_worse_for_times() {
    let (old, new) = changed(Metric::Rate, 50_000.0, 60_000.0, 70_000.0);
    let told = compare(&old, &new);
    assert_eq!(counts(&told)[..2], [1, 0], "{told}");
    let better = section(&told, "Better");
    assert!(better.len() == 1 && better[0].contains("operations/s") && better[0].contains("2.14×"), "{told}");
    let (old, new) = changed(Metric::RoundTrips, 3.0, 3.0, 3.0);
    let told = compare(&old, &new);
    assert_eq!(counts(&told)[..2], [0, 1], "{told}");
    assert!(section(&told, "Worse")[0].contains("**1.50×**"), "{told}");
}

#[test]
fn what_is_new_and_what_is_gone_is_listed() {
    let mut old = sample::run();
    let mut new = sample::run();
    old.outcomes.retain(|outcome| outcome.subject != "fast");
    new.outcomes.retain(|outcome| outcome.workload != "duty" || outcome.subject != "memory");
    let told = compare(&old, &new);
    let (before, gone) = told.split_once("## Gone").expect("what is gone");
    let (_, added) = before.split_once("## New").expect("what is new");
    assert!(
        added.contains("- Uncontended cycle, redis, fastlock 2.0") && !added.contains("memory"),
        "{told}"
    );
    assert!(gone.contains("- Time in use, memory"), "{told}");
    assert!(!gone.contains("fastlock"), "{told}");
}

#[test]
fn other_machines_and_thin_runs_are_told() {
    let old = sample::run();
    let mut new = sample::run();
    new.machine.cpu = "Another | processor".into();
    new.rounds = 1;
    new.subjects[1].server = Some("redis 9.9".into());
    let told = compare(&old, &new);
    for caution in [
        "The machines differ",
        "Another \\| processor",
        "newer run has one round",
        "now onelock 0.1.0 on redis 9.9",
    ] {
        assert!(told.contains(caution), "{caution}: {told}");
    }
    assert!(!told.contains("older run has one round"), "{told}");
}

#[test]
fn runs_of_another_format_are_not_compared() {
    let old = sample::run();
    let mut new = sample::run();
    new.format += 1;
    let told = compare(&old, &new);
    assert!(told.contains("cannot be compared") && told.contains("newer") && !told.contains('|'), "{told}");
}

#[test]
fn odd_figures_are_not_compared() {
    let told = compare(&sample::odd(), &sample::run());
    assert!(!told.contains("NaN") && !told.contains("inf"), "{told}");
}
