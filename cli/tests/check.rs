//! `check`: a store that keeps its promises, one that does not, and the page about both.

use std::fs;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::common::{Bench, PASSWORD};
use serde_json::Value;

on_every_store! {
    a_sound_store_passes
}

/// What would be left in the store for everybody is not tried.
#[test]
fn a_check_begins_no_token_epoch() {
    let bench = Bench::sqlite();
    let done = bench.run(&["check", "--case", "epochs"]);
    assert!(done.out.contains("0 passed, 0 failed, 2 do not apply"), "{done:?}");
    assert_eq!(bench.run(&["run", "after", "--", "true"]).code, Some(0));
}

/// A case at the level of verbs, one with a way that is cut, one with clients that are killed.
const CASES: [&str; 6] =
    ["--case", "basic_cycle", "--case", "lost_reply_to_release", "--case", "crashed_holder"];

fn a_sound_store_passes(bench: &Bench) {
    let (record, page) = (bench.dir.path().join("record"), bench.dir.path().join("page.html"));
    let files = ["--record", record.to_str().unwrap(), "--report", page.to_str().unwrap(), "--seed", "7"];
    let done = bench.run(&[&["check"], &CASES[..], &files[..]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("3 passed, 0 failed, 0 do not apply"), "{done:?}");
    let lines: Vec<Value> = fs::read_to_string(&record)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line["outcome"] == "passed" && line["seed"] == 7));
    assert!(lines.iter().any(|line| line["calls"].as_u64().unwrap() > 5), "{lines:?}");
    // Nobody sees more of it than names that are its own, and those are gone.
    assert_eq!(bench.run(&["list"]).out.lines().count(), 1);

    let again = bench.dir.path().join("again.html");
    let table = bench.dir.path().join("table.md");
    let from = ["check", "--from", record.to_str().unwrap()];
    let files = ["--report", again.to_str().unwrap(), "--markdown", table.to_str().unwrap()];
    assert_eq!(bench.run(&[&from[..], &files[..]].concat()).code, Some(0));
    assert!(fs::read_to_string(table).unwrap().contains("| 3 | 0 | 0 |"));
    let (page, again) = (fs::read_to_string(page).unwrap(), fs::read_to_string(again).unwrap());
    assert!(page == again && page.contains("crashed_holder"), "the page is what the record says");
    assert!(!page.contains(PASSWORD) && !fs::read_to_string(&record).unwrap().contains(PASSWORD));
}

/// A server that forgets locks long before their time breaks a promise.
#[test]
fn a_broken_promise_has_its_own_code() {
    let redis = crate::common::Redis::start();
    let mut bench = Bench::sqlite();
    bench.url = redis.url();
    let (over, is_over) = mpsc::channel();
    let port = bench.url.rsplit(':').next().unwrap().to_owned();
    let forgetting = std::thread::spawn(move || {
        let mut forget = Command::new("redis-cli");
        forget.args(["-p", &port, "flushall"]).env("REDISCLI_AUTH", PASSWORD);
        while is_over.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            assert!(forget.output().unwrap().status.success());
        }
    });
    let done = bench.run(&["check", "--case", "renewal_keeps_the_lock"]);
    over.send(()).unwrap();
    forgetting.join().unwrap();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("FAILED  renewal_keeps_the_lock"), "{done:?}");
}

#[test]
fn what_cannot_be_checked_is_said_before_anything_happens() {
    let mut bench = Bench::sqlite();
    assert_eq!(bench.run(&["check", "riddle://h"]).code, Some(64));
    assert_eq!(bench.run(&["check", "redis://127.0.0.1:1?connect_timeout=300ms"]).code, Some(69));
    assert_eq!(bench.run(&["check", "memory://m", "--volume", "0"]).code, Some(64));
    let done = bench.run(&["check", "memory://"]);
    assert!(done.code == Some(64) && done.err.contains("memory://NAME"), "{done:?}");
    // A name that is misspelt in a pipeline, and a folder that is not there.
    let done = bench.run(&["check", "memory://m", "--case", "basic_cicle"]);
    assert!(done.code == Some(64) && done.err.contains("basic_cicle"), "{done:?}");
    for file in ["--report", "--markdown", "--record"] {
        let done = bench.run(&["check", "memory://m", "--case", "basic_cycle", file, "/no/such/file"]);
        assert!(done.code == Some(64) && done.out.is_empty(), "{done:?}");
    }
    // Nothing is left of what came to nothing; and what says nothing has passed nothing.
    let (page, empty) = (bench.dir.path().join("page.html"), bench.dir.path().join("empty"));
    fs::write(&empty, "").unwrap();
    let (page, empty) = (page.to_str().unwrap(), empty.to_str().unwrap());
    for words in [
        &["memory://m", "--case", "basic_cicle"][..],
        &["--from", empty],
        &["--from", "/no/such/file"],
        &["--from", empty, "--seed", "7"],
        &["memory://m", "--case", &format!("redis://u:{PASSWORD}@h")],
    ] {
        let done = bench.run(&[&["check"], words, &["--report", page]].concat());
        assert!(done.code == Some(64) && done.out.is_empty(), "{words:?}: {done:?}");
        assert!(!fs::exists(page).unwrap(), "{words:?}");
    }
    bench.url = String::new();
    assert_eq!(bench.run(&["check"]).code, Some(64));
}
