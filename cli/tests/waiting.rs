//! How `onelock run` waits: for the lock, for a store that is away, and not longer than it was told.

use std::process::Command;

use crate::common::{Bench, PASSWORD, Redis, folder, until};
use rustix::process::Signal;

on_every_store! {
    a_wait_of_no_time_takes_a_free_lock
    an_evicted_waiter_does_not_come_back
}

/// Holds until it is ended.
const HOLD: &str = r#"echo held >> "$HIST"; while :; do sleep 0.05; done"#;

fn a_wait_of_no_time_takes_a_free_lock(bench: &Bench) {
    let done = bench.run(&["run", "a", "--wait", "0s", "--", "true"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let busy = bench.run(&["run", "a", "--wait", "0s", "--", "true"]);
    assert_eq!(busy.code, Some(75), "{busy:?}");
}

fn an_evicted_waiter_does_not_come_back(bench: &Bench) {
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let waiter = bench.spawn(&["run", "a", "--", "sh", "-c", r#"echo ran >> "$HIST""#]);
    bench.wait_for_waiters("a", 1);
    let token = bench.status("a")["waiters"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(bench.run(&["evict", "a", "--token", &token]).code, Some(0));
    let done = waiter.finish();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("removed"), "{done:?}");
    assert_eq!(bench.history(), ["held"]);
}

#[test]
fn an_empty_url_is_no_wish_for_the_default_store() {
    let mut bench = Bench::sqlite();
    bench.url = String::new();
    let done = bench.run(&["run", "a", "--", "true"]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("ONELOCK_STORE"), "{done:?}");
}

#[test]
fn verbose_names_the_store() {
    let bench = Bench::sqlite();
    let done = bench.run(&["run", "a", "-v", "--", "true"]);
    assert!(done.err.lines().next().unwrap().ends_with(&format!("at {}", bench.url)), "{done:?}");
}

#[test]
fn a_hold_that_leaves_the_command_no_time_is_refused() {
    let mut bench = Bench::sqlite();
    bench.url += "?max_hold=2s";
    let done = bench.run(&["run", "a", "--", "true"]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("max_hold"), "{done:?}");
    assert!(!bench.dir.path().join("locks.db").exists(), "nothing was asked of the store");
    assert_eq!(bench.run(&["run", "a", "--grace", "500ms", "--", "true"]).code, Some(0));
}

/// A redis-server that does not run yet is waited for, and one that goes away while somebody waits.
#[test]
fn a_store_that_is_away_is_waited_for() {
    let redis = Redis::start();
    let short = "request_timeout=500ms&connect_timeout=500ms";
    let bench = Bench { dir: folder(), url: format!("{}?{short}", redis.url()) };
    redis.signal(Signal::STOP);
    let at_once = bench.run(&["run", "a", "--no-wait", "--", "true"]);
    assert_eq!(at_once.code, Some(69), "{at_once:?}");
    let in_time = bench.run(&["run", "a", "--wait", "1s", "--", "true"]);
    assert_eq!(in_time.code, Some(69), "{in_time:?}");
    let mut waiter = bench.spawn(&["run", "a", "--", "sh", "-c", r#"echo ran >> "$HIST""#]);
    // Longer than the client itself tries again.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(waiter.is_running());
    redis.signal(Signal::CONT);
    let done = waiter.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.err.matches("waiting for the store").count(), 1, "{done:?}");
    assert_eq!(bench.history(), ["ran"]);
}

/// The holder is away with the store; its lease ends meanwhile, and so do the waiters' places.
#[test]
fn waiters_outlive_an_outage() {
    let redis = Redis::start();
    let short = "request_timeout=500ms&connect_timeout=500ms&waiter_lease=2s&ttl=6s";
    let bench = Bench { dir: folder(), url: format!("{}?{short}", redis.url()) };
    let holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let waiters: Vec<_> =
        (0..8).map(|_| bench.spawn(&["run", "a", "--", "sh", "-c", r#"echo ran >> "$HIST""#])).collect();
    bench.wait_for_waiters("a", waiters.len());
    redis.signal(Signal::STOP);
    let lost = holder.finish();
    assert_eq!(lost.code, Some(76), "{lost:?}");
    std::thread::sleep(std::time::Duration::from_secs(6));
    redis.signal(Signal::CONT);
    for waiter in waiters {
        let done = waiter.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    assert_eq!(bench.history().iter().filter(|line| *line == "ran").count(), 8);
}

/// The wait is over, and the store does not answer any more: neither who holds, nor that the place in the line is free.
#[test]
fn the_end_of_a_wait_needs_no_store() {
    let redis = Redis::start();
    let bench = Bench { dir: folder(), url: format!("{}?request_timeout=60s", redis.url()) };
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let waiter = bench.spawn(&["run", "a", "--wait", "3s", "--", "true"]);
    bench.wait_for_waiters("a", 1);
    redis.signal(Signal::STOP);
    let done = waiter.finish();
    redis.signal(Signal::CONT);
    assert_eq!(done.code, Some(75), "{done:?}");
    assert!(done.err.contains("`a` is busy"), "{done:?}");
}

/// `SET name value NX PX`, as many libraries take a lock.
#[test]
fn a_holder_of_another_library_is_an_answer() {
    let redis = Redis::start();
    let bench = Bench { dir: folder(), url: format!("{}?layout=plain&prefix=", redis.url()) };
    let theirs = ["SET", "a", "their value", "NX", "PX", "600000"];
    let url = redis.url();
    let mut cli = Command::new("redis-cli");
    cli.env("REDISCLI_AUTH", PASSWORD).args(["-p", url.rsplit(':').next().unwrap()]);
    let taken = cli.args(theirs).output().unwrap();
    assert_eq!(taken.stdout, b"OK\n", "{taken:?}");
    let status = bench.run(&["status", "a", "--json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(status["held"], true, "{status}");
    assert!(status["holders"][0]["token"].is_null(), "{status}");
    assert!(status["holders"][0]["expires_in_ms"].as_u64().unwrap() > 0, "{status}");
    let table = bench.run(&["status", "a"]);
    assert!(table.code == Some(0) && table.out.contains("not onelock"), "{table:?}");
    let busy = bench.run(&["run", "a", "--wait", "3s", "--", "true"]);
    assert_eq!(busy.code, Some(75), "{busy:?}");
    assert_eq!(busy.err.matches("held by a program that is not onelock").count(), 2, "{busy:?}");
}

/// As many as cron may start at once on one host, on the store that needs no server.
#[test]
fn a_crowd_on_one_file_is_served() {
    // More than may watch a file by the kernel's usual limit (128): the others poll.
    const CROWD: usize = 300;
    let bench = Bench::sqlite();
    let script = r#"set -C; : > "$HIST.in"; echo ran >> "$HIST"; rm "$HIST.in""#;
    let crowd: Vec<_> = (0..CROWD).map(|_| bench.spawn(&["run", "a", "--", "sh", "-c", script])).collect();
    // A small machine needs its time for so many: the next one is always waited for.
    for served in 1..=CROWD {
        until("the next one has run", || bench.history().len() >= served);
    }
    for member in crowd {
        let done = member.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
}
