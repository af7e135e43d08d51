//! A run whose command is another run.

use crate::common::{Bench, Running, children_of, group_alive, until};
use rustix::process::{Pid, Signal, kill_process};

/// Beats on after TERM.
const BEAT: &str = r#"trap '' TERM; while :; do echo beat >> "$HIST"; sleep 0.02; done"#;

/// The outer run, the inner one's process, and the group of the command. Only the outer deadlines are near.
fn nested(bench: &Bench) -> (Running, i32, i32) {
    let inner = ["run", "inner", "--ttl", "10m", "--grace", "10m", "--", "sh", "-c", BEAT];
    let outer = ["run", "outer", "--ttl", "6s", "--grace", "1s", "--", env!("CARGO_BIN_EXE_onelock")];
    let outer = bench.spawn(&outer.into_iter().chain(inner).collect::<Vec<_>>());
    until("a beat", || !bench.history().is_empty());
    let inner = children_of(outer.deadman())[0];
    let group = children_of(children_of(inner)[0])[0];
    (outer, inner, group)
}

/// The next holder of the outer lock comes after the last beat.
fn check_order(bench: &Bench, group: i32) {
    let next = bench.run(&["run", "outer", "--", "sh", "-c", r#"echo next >> "$HIST""#]);
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(!group_alive(group), "the command ran on");
    assert_eq!(bench.history().iter().position(|line| line == "next"), Some(bench.history().len() - 1));
}

#[test]
fn the_outer_deadline_ends_the_inner_command_when_the_outer_run_is_killed() {
    let bench = Bench::sqlite();
    let (outer, _, group) = nested(&bench);
    outer.signal(Signal::KILL);
    check_order(&bench, group);
}

#[test]
fn the_outer_deadline_ends_the_inner_command_when_the_outer_run_is_stopped() {
    let bench = Bench::sqlite();
    let (outer, _, group) = nested(&bench);
    outer.signal(Signal::STOP);
    check_order(&bench, group);
    outer.signal(Signal::CONT);
    assert_eq!(outer.finish().code, Some(76));
}

#[test]
fn the_outer_deadman_s_death_ends_the_inner_command() {
    let bench = Bench::sqlite();
    let (outer, _, group) = nested(&bench);
    kill_process(Pid::from_raw(outer.deadman()).unwrap(), Signal::KILL).unwrap();
    check_order(&bench, group);
    assert_eq!(outer.finish().code, Some(70));
}

#[test]
fn the_outer_lock_is_kept_until_the_inner_command_has_ended() {
    let bench = Bench::sqlite();
    let inner = ["run", "inner", "--ttl", "60s", "--grace", "3s", "--", "sh", "-c", BEAT];
    let outer = ["run", "outer", "--", env!("CARGO_BIN_EXE_onelock")];
    let outer = bench.spawn(&outer.into_iter().chain(inner).collect::<Vec<_>>());
    until("a beat", || !bench.history().is_empty());
    let inner = children_of(outer.deadman())[0];
    let group = children_of(children_of(inner)[0])[0];
    kill_process(Pid::from_raw(inner).unwrap(), Signal::KILL).unwrap();
    check_order(&bench, group);
    assert_eq!(outer.finish().code, Some(137));
}
