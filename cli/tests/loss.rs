//! What happens when the lock is lost, or those who guard it: the command never works on without it.

use crate::common::{
    BEAT, Bench, Redis, Running, SHORT, STUBBORN_BEAT, children_of, folder, group_alive, until,
};
use rustix::process::{Pid, Signal, kill_process};

on_every_store! {
    a_killed_onelock_ends_the_command
    a_stopped_onelock_ends_the_command
    a_stubborn_command_is_killed_inside_the_lease
    a_killed_deadman_ends_the_command
    a_stopped_deadman_does_not_save_the_command
    an_eviction_ends_the_command
    the_whole_group_is_ended
}

/// Starts a beating command under a short lease, and another that waits for the same lock.
fn two(bench: &Bench, beat: &str) -> (Running, Running, i32) {
    let first = bench.spawn(&["run", "a", "--ttl", SHORT, "--", "sh", "-c", beat]);
    until("the first beat", || !bench.history().is_empty());
    let group = children_of(first.deadman())[0];
    let second = bench.spawn(&["run", "a", "--", "sh", "-c", r#"echo "$ONELOCK_TOKEN" >> "$HIST""#]);
    bench.wait_for_waiters("a", 1);
    (first, second, group)
}

/// The second command ran after every beat of the first, with a later token.
fn check_handed_over(bench: &Bench, second: Running) {
    let done = second.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let history: Vec<i64> = bench.history().iter().map(|line| line.parse().unwrap()).collect();
    let (last, before) = history.split_last().unwrap();
    let first = before[0];
    assert!(*last > first, "the token grew");
    assert!(before.iter().all(|token| *token == first), "both ran at once: {history:?}");
}

fn a_killed_onelock_ends_the_command(bench: &Bench) {
    let (first, second, group) = two(bench, BEAT);
    first.signal(Signal::KILL);
    until("the group's end", || !group_alive(group));
    check_handed_over(bench, second);
}

fn a_stopped_onelock_ends_the_command(bench: &Bench) {
    let (first, second, group) = two(bench, BEAT);
    first.signal(Signal::STOP);
    check_handed_over(bench, second);
    assert!(!group_alive(group));
    first.signal(Signal::CONT);
    let done = first.finish();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("`a`"), "{done:?}");
}

fn a_stubborn_command_is_killed_inside_the_lease(bench: &Bench) {
    let (first, second, group) = two(bench, STUBBORN_BEAT);
    first.signal(Signal::STOP);
    check_handed_over(bench, second);
    assert!(!group_alive(group));
    first.signal(Signal::CONT);
    assert_eq!(first.finish().code, Some(76));
}

fn a_killed_deadman_ends_the_command(bench: &Bench) {
    let (first, second, group) = two(bench, BEAT);
    kill_process(Pid::from_raw(first.deadman()).unwrap(), Signal::KILL).unwrap();
    let done = first.finish();
    assert_eq!(done.code, Some(70), "{done:?}");
    assert!(done.err.contains("the deadman process is gone"), "{done:?}");
    assert!(!group_alive(group));
    check_handed_over(bench, second);
}

fn a_stopped_deadman_does_not_save_the_command(bench: &Bench) {
    let (first, second, group) = two(bench, STUBBORN_BEAT);
    kill_process(Pid::from_raw(first.deadman()).unwrap(), Signal::STOP).unwrap();
    let token = bench.status("a")["holders"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(bench.run(&["evict", "a", "--token", &token]).code, Some(0));
    assert_eq!(first.finish().code, Some(76));
    assert!(!group_alive(group));
    assert_eq!(second.finish().code, Some(0));
}

fn an_eviction_ends_the_command(bench: &Bench) {
    let script = r#"trap 'echo term >> "$HIST"; exit 0' TERM; echo "$ONELOCK_TOKEN" >> "$HIST"; while :; do sleep 0.02; done"#;
    let running = bench.spawn(&["run", "a", "--ttl", SHORT, "--", "sh", "-c", script]);
    until("the command", || !bench.history().is_empty());
    let token = bench.history()[0].clone();
    let wrong = bench.run(&["evict", "a", "--token", "9223372036854775807"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert_eq!(bench.status("a")["held"], true);
    let done = bench.run(&["evict", "a", "--token", &token]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let done = running.finish();
    assert_eq!(done.code, Some(76), "its own code 0 does not hide the loss: {done:?}");
    assert!(done.err.contains("evicted"), "{done:?}");
    assert_eq!(bench.history()[1], "term");
}

fn the_whole_group_is_ended(bench: &Bench) {
    // The command itself obeys TERM, its children do not, and it does not wait for them.
    let script = format!("sh -c '{}' & sh -c '{}' & wait", STUBBORN_BEAT.replace('\'', "'\\''"), BEAT);
    let (first, second, group) = two(bench, &script);
    first.signal(Signal::KILL);
    until("the group's end", || !group_alive(group));
    check_handed_over(bench, second);
}

#[test]
fn a_dead_store_ends_the_command_before_the_lease() {
    let redis = Redis::start();
    let bench = Bench { dir: folder(), url: redis.url() };
    let script =
        r#"trap 'echo term >> "$HIST"; exit 0' TERM; echo up >> "$HIST"; while :; do sleep 0.02; done"#;
    let running = bench.spawn(&["run", "a", "--ttl", SHORT, "--max-hold", "1h", "--", "sh", "-c", script]);
    bench.wait_for_line("up");
    redis.signal(Signal::STOP);
    let done = running.finish();
    redis.signal(Signal::CONT);
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("was not renewed"), "{done:?}");
    assert_eq!(bench.history(), ["up", "term"], "it was asked to end before it was killed");
}

#[test]
fn two_deaths_at_once_still_end_the_command() {
    let bench = Bench::sqlite();
    let (first, second, group) = two(&bench, STUBBORN_BEAT);
    let deadman = Pid::from_raw(first.deadman()).unwrap();
    first.signal(Signal::STOP);
    kill_process(deadman, Signal::KILL).unwrap();
    first.signal(Signal::KILL);
    until("the end of the command itself", || !children_alive(group));
    check_handed_over(&bench, second);
}

fn children_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
