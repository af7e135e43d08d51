//! `status`, `list`, `evict`, `stores`, `completions`, errors and pipes.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::common::{Bench, PASSWORD, SHORT, until};
use serde_json::Value;

on_every_store! {
    status_shows_the_line
    list_shows_names_by_prefix
    evict_says_what_happened
    bad_input_is_refused_before_anything_happens
}

const HOLD: &str = r#"echo held >> "$HIST"; while :; do sleep 0.05; done"#;

fn status_shows_the_line(bench: &Bench) {
    let free = bench.run(&["status", "a"]);
    assert_eq!((free.code, free.out.as_str()), (Some(1), "a is free\n"));
    assert_eq!(bench.status("a")["held"], false);

    let _holder = bench.spawn(&["run", "a", "--note", "holder's note", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let _waiter = bench.spawn(&["run", "a", "--shared", "--", "true"]);
    bench.wait_for_waiters("a", 1);

    let line = bench.status("a");
    let (holder, waiter) = (&line["holders"][0], &line["waiters"][0]);
    assert_eq!((&line["name"], &line["held"]), (&Value::from("a"), &Value::from(true)));
    assert_eq!(
        (&holder["mode"], &holder["note"]),
        (&Value::from("exclusive"), &Value::from("holder's note"))
    );
    assert_eq!(waiter["mode"], "shared");
    let token = |entry: &Value| entry["token"].as_str().unwrap().parse::<i64>().unwrap();
    assert!(token(waiter) > token(holder));
    assert!(waiter["note"].as_str().unwrap().ends_with(" true"), "{waiter}");
    let left = holder["expires_in_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 30_000, "{holder}");

    let table = bench.run(&["status", "a"]);
    assert_eq!(table.code, Some(0));
    let lines: Vec<_> = table.out.lines().collect();
    assert!(lines[0].starts_with("STATE") && lines[1].starts_with("holds") && lines[2].starts_with("waits"));
    assert!(!table.out.contains('\u{1b}'));
}

fn list_shows_names_by_prefix(bench: &Bench) {
    let names = ["jobs/1", "jobs/2", "other"];
    let _holders: Vec<_> =
        names.iter().map(|name| bench.spawn(&["run", name, "--", "sh", "-c", HOLD])).collect();
    until("three holders", || bench.history().len() == 3);
    let list = |prefix: &[&str]| -> Vec<String> {
        let done = bench.run(&[&["list", "--json"], prefix].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        let mut names: Vec<String> = done
            .out
            .lines()
            .map(|line| {
                let value: Value = serde_json::from_str(line).unwrap();
                assert_eq!((value["holders"].as_u64(), value["waiters"].as_u64()), (Some(1), Some(0)));
                value["name"].as_str().unwrap().into()
            })
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(&[]), names);
    assert_eq!(list(&["jobs/"]), ["jobs/1", "jobs/2"]);
    assert_eq!(list(&["nothing"]), [""; 0]);
    let table = bench.run(&["list", "other"]);
    assert_eq!(table.out, "HOLDERS  WAITERS  NAME\n      1        0  other\n");
}

fn evict_says_what_happened(bench: &Bench) {
    let holder = bench.spawn(&["run", "a", "--ttl", SHORT, "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let token = bench.status("a")["holders"][0]["token"].as_str().unwrap().to_owned();
    let evict = |token: &str| {
        let done = bench.run(&["evict", "a", "--token", token, "--json"]);
        let value: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!((&value["name"], &value["token"]), (&Value::from("a"), &Value::from(token)));
        (done.code, value["evicted"].as_bool().unwrap())
    };
    assert_eq!(evict("9007199254740993"), (Some(1), false));
    assert_eq!(evict(&token), (Some(0), true));
    assert_eq!(evict(&token), (Some(1), false));
    assert_eq!(holder.finish().code, Some(76));
}

fn bad_input_is_refused_before_anything_happens(bench: &Bench) {
    let long = "n".repeat(256);
    let note = "n".repeat(513);
    for bad in [
        &["run", "", "--", "true"][..],
        &["run", &long, "--", "true"],
        &["run", "a\u{7}", "--", "true"],
        &["run", "a", "--ttl", "1ns", "--", "true"],
        &["run", "a", "--ttl", "1000000 days", "--", "true"],
        &["run", "a", "--ttl", "soon", "--", "true"],
        &["run", "a", "--note", &note, "--", "true"],
        &["run", "a"],
        &["status", ""],
        &["evict", "a", "--token", "x"],
        &["list", "--pages", "2"],
        &["--store", "redis://u:hunter2-never-printed@127.0.0.1:1/0?tll=1", "status", "a"],
        &["--store", "gopher://u:hunter2-never-printed@h", "status", "a"],
        &["--store", "hunter2-never-printed", "status", "a"],
        &["--store", "sqlite:///x/y?ttl=hunter2-never-printed", "status", "a"],
    ] {
        let done = bench.run(bad);
        assert_eq!(done.code, Some(64), "{bad:?}: {done:?}");
        assert!(!done.err.is_empty() && done.out.is_empty(), "{bad:?}: {done:?}");
    }
}

#[test]
fn unknown_schemes_and_options_name_those_that_exist() {
    let bench = Bench::sqlite();
    let done = bench.run(&["--store", "gopher://h", "status", "a"]);
    assert!(
        done.err.contains("`gopher`") && done.err.contains("sqlite") && done.err.contains("redis"),
        "{done:?}"
    );
    let done = bench.run(&["--store", "redis://127.0.0.1:1?tll=1", "status", "a"]);
    assert!(done.err.contains("`tll`") && done.err.contains("ttl"), "{done:?}");
}

#[test]
fn a_store_out_of_reach_has_its_own_code() {
    let bench = Bench::sqlite();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}");
    let run = ["run", "a", "--no-wait", "--", "sh", "-c", "echo in >> $HIST"];
    for words in [&["status", "a"][..], &run, &["list"]] {
        let done = bench.run(&[&["--store", &url], words].concat());
        assert_eq!(done.code, Some(69), "{done:?}");
        assert!(done.err.contains(&port.to_string()), "it says which store: {done:?}");
    }
    let done = bench.run(&["--store", "sqlite:///proc/nowhere/locks.db", "status", "a"]);
    assert!(matches!(done.code, Some(64 | 69)), "{done:?}");
    assert!(bench.history().is_empty());
}

#[test]
fn the_default_store_is_private_to_the_user() {
    let bench = Bench::sqlite();
    let state = bench.dir.path().join("state");
    let onelock = |words: &[&str]| {
        let mut command = bench.onelock(words);
        command.env_remove("ONELOCK_STORE").env("XDG_STATE_HOME", &state);
        command.output().unwrap()
    };
    assert!(onelock(&["run", "a", "--", "true"]).status.success());
    assert!(state.join("onelock/locks.db").is_file());
    let mode = std::fs::metadata(state.join("onelock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut homeless = bench.onelock(&["status", "a"]);
    homeless.env_remove("ONELOCK_STORE").env_remove("XDG_STATE_HOME").env("HOME", bench.dir.path());
    assert_eq!(homeless.status().unwrap().code(), Some(1));
    assert!(bench.dir.path().join(".local/state/onelock/locks.db").is_file());
}

#[test]
fn stores_lists_what_this_build_has() {
    let bench = Bench::sqlite();
    let done = bench.run(&["stores", "--json"]);
    let stores: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in ["memory", "sqlite", "redis"] {
        let store = stores.iter().find(|store| store["name"] == name).unwrap();
        assert_eq!(store["compiled_in"], true);
        let options = store["options"].as_array().unwrap();
        assert!(options.iter().any(|option| option["name"] == "ttl"), "{store}");
    }
    let text = bench.run(&["stores"]).out;
    assert!(text.contains("sqlite://") && text.contains("redis://") && text.contains("ttl=30s"), "{text}");
}

#[test]
fn a_closed_pipe_is_not_a_panic() {
    let bench = Bench::sqlite();
    for words in [&["stores"][..], &["list"], &["status", "a"], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = bench.onelock(words).stdout(writer).spawn().unwrap();
        let mut err = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
        let code = child.wait().unwrap().code();
        assert!(err.is_empty(), "{words:?}: {err}");
        assert!(matches!(code, Some(141 | 0)), "{words:?}: {code:?}");
    }
    // Nor is a closed stderr, for messages as for the command.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = bench.onelock(&["run", "a", "--verbose", "--", "sh", "-c", "exit 4"]);
    assert_eq!(run.stderr(writer).status().unwrap().code(), Some(4));
}

#[test]
fn completions_and_help_are_there() {
    let bench = Bench::sqlite();
    for shell in ["bash", "zsh", "fish"] {
        let done = bench.run(&["completions", shell]);
        assert_eq!(done.code, Some(0));
        assert!(done.out.contains("--conflict-exit-code") || done.out.contains("conflict-exit-code"));
    }
    let help = bench.run(&["run", "--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.out.contains("76   the lock was lost"), "{help:?}");
    assert_eq!(bench.run(&["--version"]).code, Some(0));
}

#[test]
fn the_inner_roles_are_not_for_people() {
    let bench = Bench::sqlite();
    let done = bench.run(&["__command", "1", "3", "-", "sh", "-c", "echo in >> $HIST"]);
    assert_eq!(done.code, Some(70), "its parent is not who was named");
    // A deadman whose master goes away without a word starts nothing.
    let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(ours);
    let status = Command::new(env!("CARGO_BIN_EXE_onelock"))
        .args(["__deadman", "sh", "-c", "echo in >> $HIST"])
        .env("HIST", bench.history_file())
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(bench.history().is_empty());
}
