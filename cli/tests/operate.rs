//! Many names at once: `top`, `deadlocks`; and the manual's pages.

use crate::common::terminal::Terminal;
use crate::common::{Bench, PASSWORD, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

on_every_store! {
    one_table_for_scripts
    the_live_table_sorts_filters_and_evicts
    a_circle_of_two_is_named
    odd_names_are_shown_whole_to_programs_alone
}

/// Holds until it is ended.
const HOLD: &str = r#"echo held >> "$HIST"; while :; do sleep 0.05; done"#;

fn one_table_for_scripts(bench: &Bench) {
    let _idle = bench.spawn(&["run", "jobs/idle", "--note", "idler", "--", "sh", "-c", HOLD]);
    let _busy = bench.spawn(&["run", "jobs/busy", "--note", "worker", "--", "sh", "-c", HOLD]);
    let _other = bench.spawn(&["run", "other", "--", "sh", "-c", HOLD]);
    until("three holders", || bench.history().len() == 3);
    let _waiter = bench.spawn(&["wait", "jobs/busy"]);
    bench.wait_for_waiters("jobs/busy", 1);
    let table = bench.run(&["top", "jobs/", "--once"]);
    assert_eq!(table.code, Some(0), "{table:?}");
    let lines: Vec<_> = table.out.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("WAITERS"), "{table:?}");
    assert!(
        lines[1].starts_with("1  ") && lines[1].contains("jobs/busy") && lines[1].ends_with("worker"),
        "{table:?}"
    );
    assert!(
        lines[2].starts_with("0  ") && lines[2].contains("jobs/idle") && lines[2].ends_with("idler"),
        "{table:?}"
    );
    let names = |words: &[&str]| -> Vec<String> {
        let done = bench.run(&[&["top", "--once", "--json"], words].concat());
        let row = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().into();
        done.out.lines().map(row).collect()
    };
    assert_eq!(names(&["--sort", "name"]), ["jobs/busy", "jobs/idle", "other"]);
    assert_eq!(names(&["--filter", "idler"]), ["jobs/idle"]);
    assert_eq!(names(&["--names", "1"]), ["jobs/busy"], "the one with the most waiters");
    let live = bench.run(&["top"]);
    assert_eq!(live.code, Some(64), "{live:?}");
    assert!(live.err.contains("--once"), "{live:?}");
}

fn the_live_table_sorts_filters_and_evicts(bench: &Bench) {
    let first = bench.spawn(&["run", "jobs/first", "--ttl", "6s", "--note", "one", "--", "sh", "-c", HOLD]);
    let mut second = bench.spawn(&["run", "jobs/second", "--note", "two", "--", "sh", "-c", HOLD]);
    until("two holders", || bench.history().len() == 2);
    let mut terminal = Terminal::open(bench);
    terminal
        .types("stty rows 24 cols 80; $ONELOCK top --interval 100ms; echo code=$?; stty -a | tr ';' '\\n'\n");
    terminal.wait_for("2 names, 2 held, 0 waiters");
    terminal.types("s");
    terminal.wait_for("s sort: oldest");
    terminal.types("/first\r");
    terminal.wait_for("filter: first");
    terminal.types("e");
    terminal.wait_for("(one) from jobs/first? y/n");
    terminal.types("n");
    terminal.wait_for("nothing was evicted");
    terminal.types("e");
    until("a second question", || terminal.shown().matches("(one) from jobs/first? y/n").count() > 1);
    terminal.types("y");
    terminal.wait_for("evicted token ");
    assert_eq!(first.finish().code, Some(76));
    assert!(second.is_running());
    terminal.types("q");
    terminal.wait_for("code=0");
    terminal.wait_for("\u{1b}[?1049l");
    until("the modes of the terminal", || {
        terminal.shown().contains(" icanon ") && terminal.shown().contains(" echo ")
    });
}

/// Programs get names and notes as they are, people get them without what turns the rest of a line round.
fn odd_names_are_shown_whole_to_programs_alone(bench: &Bench) {
    let (name, note) = ("a\u{202e}b", "me\u{2066}you");
    let holder = bench.spawn(&["run", name, "--ttl", "6s", "--note", note, "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let row: Value = serde_json::from_str(&bench.run(&["top", "--once", "--json"]).out).unwrap();
    assert_eq!((&row["name"], &row["holder"]), (&name.into(), &note.into()));
    let table = bench.run(&["top", "--once"]).out;
    assert!(table.contains("a\u{fffd}b") && !table.contains(['\u{202e}', '\u{2066}']), "{table}");
    let mut terminal = Terminal::open(bench);
    terminal.types("stty rows 24 cols 80; $ONELOCK top --interval 100ms\n");
    terminal.wait_for("1 names, 1 held");
    terminal.types("e");
    terminal.wait_for("(me\u{fffd}you) from a\u{fffd}b? y/n");
    terminal.types("y");
    terminal.wait_for("evicted token ");
    assert_eq!(holder.finish().code, Some(76));
    assert!(!terminal.shown().contains(['\u{202e}', '\u{2066}']));
    terminal.types("q");
}

/// Ctrl-C is a signal while no key is read, as during an eviction: the terminal is left as it was then, too.
#[test]
fn a_signal_leaves_no_screen_behind() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    terminal.types("sh -c 'echo $$ >> $HIST; exec $ONELOCK top'\n");
    terminal.wait_for("0 names, 0 held");
    let top = bench.history()[0].parse().unwrap();
    kill_process(Pid::from_raw(top).unwrap(), Signal::INT).unwrap();
    terminal.wait_for("\u{1b}[?1049l");
}

fn a_circle_of_two_is_named(bench: &Bench) {
    let none = bench.run(&["deadlocks"]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), "no deadlock\n"));
    let nested = |outer: &str, inner: &str| {
        let onelock = env!("CARGO_BIN_EXE_onelock");
        // Both must hold before either waits.
        let script = format!(
            r#"echo held >> "$HIST"; until [ "$(grep -c held "$HIST")" = 2 ]; do sleep 0.02; done
            exec {onelock} run {inner} -- sh -c 'echo both >> "$HIST"'"#
        );
        bench.spawn(&["run", outer, "--", "sh", "-c", &script])
    };
    let two = [nested("a", "b"), nested("b", "a")];
    bench.wait_for_waiters("a", 1);
    bench.wait_for_waiters("b", 1);
    let found = bench.run(&["deadlocks"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.out.starts_with("deadlock 1:\n") && found.out.lines().count() == 3, "{found:?}");
    for (run, (waits, holds)) in two.iter().zip([("b", "a"), ("a", "b")]) {
        let client = format!(":{}", run.pid());
        let line = found.out.lines().find(|line| line.contains(&format!("waits for {waits} "))).unwrap();
        let (waiter, holder) = line.split_once(" waits for ").unwrap();
        assert!(waiter.ends_with(&client) && holder.contains("holds it"), "{found:?}");
        let _ = holds;
    }
    let json: Value = serde_json::from_str(&bench.run(&["deadlocks", "--json"]).out).unwrap();
    assert_eq!(json["circle"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!(json["circle"][0]["behind"], json["circle"][1]["client"]);
    assert_eq!(json["circle"][0]["behind_holds"], true);
    // One of them gives in.
    two[0].signal(Signal::TERM);
    let [first, second] = two.map(crate::common::Running::finish);
    assert_eq!((first.code, second.code), (Some(143), Some(0)), "{first:?} {second:?}");
    assert_eq!(bench.run(&["deadlocks"]).code, Some(0));
}

/// A line that this version cannot read, as one of a later version may be, hides no other.
#[test]
fn a_line_that_cannot_be_read_hides_no_other() {
    let bench = Bench::redis();
    let names = ["good", "later"];
    let _holders = names.map(|name| bench.spawn(&["run", name, "--", "sh", "-c", HOLD]));
    until("two holders", || bench.history().len() == 2);
    let _waiters = names.map(|name| bench.spawn(&["wait", name]));
    names.iter().for_each(|name| bench.wait_for_waiters(name, 1));
    let (server, prefix) = bench.url.split_once("?prefix=").unwrap();
    let script = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do for _, of in ipairs(redis.call('HKEYS', key)) do \
                  redis.call('HSET', key, of, (string.gsub(redis.call('HGET', key, of), ' x ', ' x9 ', 1))) end end";
    let mut redis = std::process::Command::new("redis-cli");
    redis.env("REDISCLI_AUTH", PASSWORD).args(["-e", "-p", server.rsplit(':').next().unwrap()]);
    assert!(redis.args(["EVAL", script, "0", &format!("{prefix}*:e:later")]).status().unwrap().success());
    let table = bench.run(&["top", "--once", "--sort", "name"]);
    assert_eq!((table.code, table.out.lines().count()), (Some(0), 3), "{table:?}");
    assert!(table.out.lines().nth(2).is_some_and(|row| row.contains("not a lock mode")), "{table:?}");
    let found = bench.run(&["deadlocks"]);
    assert_eq!((found.code, found.out.as_str()), (Some(69), ""), "{found:?}");
    assert!(found.err.contains("later cannot be read: "), "{found:?}");
}

#[test]
fn the_manual_has_a_page_for_each_subcommand() {
    let bench = Bench::sqlite();
    let page = bench.run(&["man"]);
    assert!(page.code == Some(0) && page.out.contains(".TH onelock 1"), "{page:?}");
    let page = bench.run(&["man", "run"]);
    assert!(page.code == Some(0) && page.out.contains("the lock was lost"), "{page:?}");
    assert_eq!(bench.run(&["man", "frob"]).code, Some(64));
    let dir = bench.dir.path().join("man");
    std::fs::create_dir(&dir).unwrap();
    assert_eq!(bench.run(&["man", "--dir", dir.to_str().unwrap()]).code, Some(0));
    for page in ["onelock.1", "onelock-run.1", "onelock-elect.1", "onelock-top.1"] {
        assert!(std::fs::metadata(dir.join(page)).unwrap().len() > 500, "{page}");
    }
}
