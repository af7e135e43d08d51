//! `bench`: what it writes and what it refuses. Only counts are asserted: times are the machine's.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Bench, PASSWORD, Running, children_of, until};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

fn json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// The figures of a workload on a subject.
fn figures<'a>(run: &'a Value, workload: &str, subject: &str) -> &'a Value {
    let outcomes = run["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|o| o["workload"] == workload && o["subject"] == subject);
    &found.unwrap_or_else(|| panic!("{workload} on {subject} is not there: {run}"))["figures"]
}

#[test]
fn figures_become_files_and_a_comparison() {
    let bench = Bench::sqlite();
    // Without a store of its own it measures those it can make itself.
    let measure = |words: &[&str]| {
        let mut command = bench.onelock(words);
        command.env_remove("ONELOCK_STORE");
        Running::new(command).finish()
    };
    let file = |name: &str| bench.dir.path().join(name).to_str().unwrap().to_owned();
    let (figures_in, page, tables) = (file("run.json"), file("page.html"), file("tables.md"));
    let words = ["bench", "--quick", "-w", "cycle", "-w", "held", "-w", "round-trip"];
    let files = ["--json", &figures_in, "--html", &page, "--markdown", &tables];
    let done = measure(&[&words[..], &files].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    let run = json(Path::new(&figures_in));
    for subject in ["memory", "sqlite"] {
        assert!(done.out.contains(subject), "{done:?}");
        assert!(figures(&run, "cycle", subject)["rate"]["median"].as_f64().unwrap() > 0.0);
        // The program counts what it allocates.
        assert!(figures(&run, "held", subject)["memory"]["median"].as_f64().unwrap() > 100.0);
        // What cannot be measured is said to be left out.
        let left_out = run["left_out"].as_array().unwrap();
        assert!(left_out.iter().any(|left| left["subject"] == subject && left["workload"] == "round-trip"));
    }
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    assert!(fs::read_to_string(&tables).unwrap().contains("| "));

    // Against itself, and without another run.
    let again = measure(&["bench", "--from", &figures_in, "--compare", &figures_in]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.out.len() > done.out.len() && again.out.contains("memory"), "{again:?}");
}

/// An uncontended cycle is two round trips, seen from outside the client; and the password stays where it belongs.
#[test]
fn a_cycle_on_redis_is_two_round_trips() {
    let bench = Bench::redis();
    let file = bench.dir.path().join("run.json");
    let url = format!("mine={}", bench.url);
    let words = ["bench", &url, "--quick", "-w", "cycle", "--json", file.to_str().unwrap()];
    let done = bench.run(&words);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(figures(&json(&file), "cycle", "mine")["round_trips"]["median"], 2.0);
    assert!(!fs::read_to_string(&file).unwrap().contains(PASSWORD));
}

/// The store that all commands take is measured, unless others are named.
#[test]
fn the_store_of_the_other_commands_is_measured() {
    let bench = Bench::sqlite();
    let file = bench.dir.path().join("run.json");
    let subjects = |words: &[&str]| {
        let always = ["--quick", "-w", "cycle", "--json", file.to_str().unwrap()];
        let done = bench.run(&[words, &always].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        let run = json(&file);
        let subjects = run["subjects"].as_array().unwrap().iter();
        subjects.map(|subject| subject["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(subjects(&["bench"]), ["sqlite"]);
    assert!(bench.dir.path().join("locks.db").exists(), "another file was measured");
    assert_eq!(subjects(&["bench", "--store", "memory://"]), ["memory"]);
    assert_eq!(subjects(&["bench", "mine=memory://"]), ["mine"]);
    let refused = bench.run(&["bench", "--store", "riddle://h", "-w", "cycle"]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
}

#[test]
fn what_is_done_stays_after_ctrl_c() {
    let bench = Bench::sqlite();
    let file = bench.dir.path().join("run.json");
    let words = ["bench", "memory://", "-w", "cycle", "--rounds", "1000", "--json", file.to_str().unwrap()];
    let running = bench.spawn(&words);
    until("somebody who listens for the signal", || {
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
    });
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    let run = json(&file);
    assert_eq!((&run["interrupted"], &run["rounds"]), (&Value::Bool(true), &Value::from(1000)));
    let parts = [&run["outcomes"], &run["left_out"]].map(|part| part.as_array().unwrap().len());
    assert_eq!(parts.iter().sum::<usize>(), 1, "{run}");
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let bench = Bench::sqlite();
    let file = |name: &str, text: &str| {
        let file = bench.dir.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (foreign, later) = (file("foreign.json", r#"{"a": 1}"#), file("later.json", r#"{"format": 4711}"#));
    let untouched = bench.dir.path().join("run.json");
    let url = format!("redis://me:{PASSWORD}@h");
    for (words, wanted) in [
        (&["-w", &url][..], "--store"),
        (&["-w", "cylce"], "try-busy"),
        (&["--compare", "/nowhere/run.json"], "/nowhere/run.json"),
        (&["--compare", &foreign], "not a run"),
        (&["--compare", &later], "4711"),
        (&["--from", &later], "4711"),
        (&["--html", "/nowhere/page.html"], "/nowhere/page.html"),
        (&["riddle://h"], "riddle"),
        (&["memory://?tll=1s"], "tll"),
        (&["a=memory://", "a=memory://x"], "two stores"),
    ] {
        let json = ["--json", untouched.to_str().unwrap()];
        let json = if words[0] == "--compare" { &json[..] } else { &[] };
        let done = bench.run(&[&["bench"], words, json].concat());
        assert_eq!(done.code, Some(64), "{words:?}: {done:?}");
        assert!(done.err.contains(wanted) && done.out.is_empty(), "{words:?}: {done:?}");
    }
    assert!(!untouched.exists());
    // Nor is a page made, or an older one touched.
    let (page, older) = (bench.dir.path().join("page.html"), file("older.html", "older"));
    for words in [&["--from", &foreign][..], &["riddle://h"]] {
        let pages = ["--html", page.to_str().unwrap(), "--markdown", &older];
        let done = bench.run(&[&["bench"], words, &pages].concat());
        assert_eq!(done.code, Some(64), "{words:?}: {done:?}");
        assert!(!page.exists(), "{words:?}");
        assert_eq!(fs::read_to_string(&older).unwrap(), "older");
    }
    let done = bench.run(&["bench", "--from", &foreign, "--html", bench.dir.path().to_str().unwrap()]);
    assert!(done.err.contains("directory"), "{done:?}");
}

/// Where what a file is written to is a pipe, as of the shell's `>(…)`, a device or a link, it stays that.
#[test]
fn a_pipe_and_a_link_stay_what_they_are() {
    let bench = Bench::sqlite();
    let place = |name: &str| bench.dir.path().join(name);
    let (pipe, link, figures) = (place("pipe"), place("latest.json"), place("run.json"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink(&figures, &link).unwrap();
    fs::write(&figures, "older").unwrap();
    let mut reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    for file in [&pipe, &link] {
        let words = ["bench", "memory://", "--quick", "-w", "reentry", "--json", file.to_str().unwrap()];
        let done = bench.run(&words);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let is_pipe = fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo();
    if !is_pipe {
        reader.kill().unwrap();
    }
    let read = reader.wait_with_output().unwrap();
    assert!(is_pipe && link.is_symlink(), "replaced by a file");
    assert_eq!(serde_json::from_slice::<Value>(&read.stdout).unwrap()["format"], 2);
    assert_eq!(json(&figures)["format"], 2);
}

/// The terminal's Ctrl-C goes to all processes of the job: those that contend work on, as the present sample does.
#[test]
fn the_present_sample_of_processes_is_kept_after_ctrl_c() {
    let bench = Bench::sqlite();
    let file = bench.dir.path().join("run.json");
    let words = ["bench", "-w", "processes", "--rounds", "1000", "--quick", "--json", file.to_str().unwrap()];
    let mut command = bench.onelock(&words);
    command.process_group(0);
    let running = Running::new(command);
    until("eight who contend", || children_of(running.pid()).len() >= 8);
    kill_process_group(Pid::from_raw(running.pid()).unwrap(), Signal::INT).unwrap();
    let done = running.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    let run = json(&file);
    assert_eq!(run["outcomes"].as_array().unwrap().len(), 1, "{}", run["left_out"]);
}
