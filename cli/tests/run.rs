//! `onelock run` while all goes well.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Bench, group_alive, until};
use rustix::process::Signal;

on_every_store! {
    tokens_grow_and_codes_pass_through
    two_at_once_never_overlap
    busy_has_its_own_code
    shared_and_permits_hold_together
    permits_have_weights
    signals_reach_the_whole_group
    a_wait_can_be_interrupted
    what_the_command_leaves_running_keeps_the_lock
    input_output_and_environment_are_the_commands_own
}

/// A lease so long that a lock which is not given back fails the test instead of slowing it down.
const LONG: &str = "1h";

fn tokens_grow_and_codes_pass_through(bench: &Bench) {
    let run = |script: &str| bench.run(&["run", "a", "--ttl", LONG, "--", "sh", "-c", script]);
    let tokens: Vec<i64> = (0..3)
        .map(|code| {
            let done = run(&format!("echo $ONELOCK_TOKEN; exit {code}"));
            assert_eq!(done.code, Some(code), "{done:?}");
            done.out.trim().parse().unwrap()
        })
        .collect();
    assert!(tokens[0] > 0 && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(run("kill -9 $$").code, Some(137));
    assert_eq!(run("kill -TERM $$").code, Some(143));
    assert_eq!(run("exit 255").code, Some(255));
    let missing = bench.run(&["run", "a", "--", "no-such-program"]);
    assert_eq!(missing.code, Some(127));
    assert!(missing.err.contains("no-such-program: command not found"), "{missing:?}");
    assert_eq!(bench.run(&["run", "a", "--", "/etc/passwd"]).code, Some(126));
    assert_eq!(bench.status("a")["held"], false);
}

fn two_at_once_never_overlap(bench: &Bench) {
    let script = r#"echo "in $ONELOCK_TOKEN" >> "$HIST"; sleep 0.01; echo "out $ONELOCK_TOKEN" >> "$HIST""#;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let done = bench.run(&["run", "a", "--ttl", LONG, "--", "sh", "-c", script]);
                    assert_eq!(done.code, Some(0), "{done:?}");
                    assert!(!done.err.contains("given back"), "{done:?}");
                }
            });
        }
    });
    let history = bench.history();
    assert_eq!(history.len(), 32);
    let mut last = 0;
    for pair in history.chunks(2) {
        let (token, out) = (pair[0].strip_prefix("in ").unwrap(), pair[1].strip_prefix("out ").unwrap());
        assert_eq!(token, out, "{history:?}");
        let token: i64 = token.parse().unwrap();
        assert!(token > last, "{history:?}");
        last = token;
    }
}

fn busy_has_its_own_code(bench: &Bench) {
    let mut holder = bench.spawn(&["run", "a", "--note", "the nightly job", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let busy = bench.run(&["run", "a", "--no-wait", "--", "sh", "-c", "echo in >> $HIST"]);
    assert_eq!(busy.code, Some(75));
    assert!(busy.err.contains("`a` is busy, held by the nightly job, token "), "{busy:?}");
    let busy = bench.run(&["run", "a", "--wait", "2s", "-E", "9", "--", "sh", "-c", "echo in >> $HIST"]);
    assert_eq!(busy.code, Some(9));
    assert!(busy.err.contains("waiting for `a`, held by the nightly job"), "{busy:?}");
    assert!(!busy.err.contains('\r') && !busy.err.contains('\u{1b}'), "not for a terminal: {busy:?}");
    assert!(holder.is_running());
    assert_eq!(bench.history(), ["held"]);
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, Some(143));
    assert_eq!(bench.run(&["run", "a", "--no-wait", "--", "true"]).code, Some(0));
}

/// Holds until it is ended.
const HOLD: &str = r#"echo held >> "$HIST"; while :; do sleep 0.05; done"#;

fn shared_and_permits_hold_together(bench: &Bench) {
    let _reader = bench.spawn(&["run", "book", "--shared", "--", "sh", "-c", HOLD]);
    let _permit = bench.spawn(&["run", "pool", "--permits", "2", "--", "sh", "-c", HOLD]);
    until("two holders", || bench.history().len() == 2);
    assert_eq!(bench.run(&["run", "book", "-n", "--shared", "--", "true"]).code, Some(0));
    assert_eq!(bench.run(&["run", "book", "-n", "--", "true"]).code, Some(75));
    assert_eq!(bench.run(&["run", "pool", "-n", "--permits", "2", "--", "true"]).code, Some(0));
    // The smallest number among those who hold counts.
    assert_eq!(bench.run(&["run", "pool", "-n", "--permits", "3", "--", "true"]).code, Some(0));
    assert_eq!(bench.run(&["run", "pool", "-n", "--permits", "1", "--", "true"]).code, Some(75));
    assert_eq!(bench.status("pool")["holders"][0]["limit"], 2);
}

fn permits_have_weights(bench: &Bench) {
    let take = |weight: &str| {
        bench
            .run(&["run", "pool", "-n", "--permits", "5", "--weight", weight, "--", "sh", "-c", "exit 3"])
            .code
    };
    let large = bench.spawn(&["run", "pool", "--permits", "5", "--weight", "3", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let status = bench.status("pool");
    let holder = &status["holders"][0];
    assert_eq!((&holder["limit"], &holder["weight"]), (&5.into(), &3.into()), "{status}");
    assert!(bench.run(&["status", "pool"]).out.contains("permit/5w3"));
    assert_eq!((take("3"), take("2"), take("1")), (Some(75), Some(3), Some(3)));
    large.signal(Signal::TERM);
    assert_eq!(large.finish().code, Some(143));
    assert_eq!(take("5"), Some(3));
}

fn signals_reach_the_whole_group(bench: &Bench) {
    let script = r#"
        trap 'echo "parent $NAME" >> "$HIST"' USR1 HUP; trap 'echo parent INT >> "$HIST"; exit 5' INT
        ( trap 'echo child >> "$HIST"; exit' USR1; echo up >> "$HIST"; while :; do sleep 0.02; done ) &
        echo up >> "$HIST"; while :; do sleep 0.02; done"#;
    let running = bench.spawn(&["run", "a", "--", "sh", "-c", script]);
    until("both up", || bench.history().len() == 2);
    running.signal(Signal::USR1);
    bench.wait_for_line("child");
    until("the parent's trap", || bench.history().iter().any(|line| line.starts_with("parent")));
    running.signal(Signal::INT);
    bench.wait_for_line("parent INT");
    let done = running.finish();
    assert_eq!(done.code, Some(5), "{done:?}");
}

fn a_wait_can_be_interrupted(bench: &Bench) {
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let waiter = bench.spawn(&["run", "a", "--", "sh", "-c", "echo in >> $HIST"]);
    bench.wait_for_waiters("a", 1);
    waiter.signal(Signal::INT);
    let done = waiter.finish();
    assert_eq!(done.status.signal(), Some(Signal::INT.as_raw()), "{done:?}");
    assert_eq!(bench.status("a")["waiters"].as_array().unwrap().len(), 0, "it left the line");
    assert_eq!(bench.history(), ["held"]);
}

fn what_the_command_leaves_running_keeps_the_lock(bench: &Bench) {
    let script = r#"(while [ ! -e "$HIST.go" ]; do sleep 0.02; done; echo late >> "$HIST") & echo $$ >> "$HIST"; exit 3"#;
    let go = bench.history_file().with_extension("go");
    let mut first = bench.spawn(&["run", "a", "--", "sh", "-c", script]);
    until("the command's end", || !bench.history().is_empty());
    let group: i32 = bench.history()[0].parse().unwrap();
    // Busy for as long as its group lives, and it is told why.
    assert_eq!(bench.run(&["run", "a", "--wait", "1500ms", "--", "true"]).code, Some(75));
    assert!(group_alive(group) && first.is_running());
    std::fs::write(&go, "").unwrap();
    let done = first.finish();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.err.contains("waiting for what it left running"), "{done:?}");
    assert_eq!(bench.history()[1], "late");

    std::fs::remove_file(&go).unwrap();
    // What it leaves must not keep our pipes open.
    let script = format!("exec >/dev/null 2>&1; {script}");
    let done = bench.run(&["run", "b", "--leader-only", "--", "sh", "-c", &script]);
    assert_eq!((done.code, bench.history().len()), (Some(3), 3), "{done:?}");
    assert!(group_alive(bench.history()[2].parse().unwrap()), "it is left alone");
    std::fs::write(&go, "").unwrap();
    until("it goes on", || bench.history().len() == 4);
}

fn input_output_and_environment_are_the_commands_own(bench: &Bench) {
    let script = r#"cat; echo "$ONELOCK_NAME"; echo problem >&2; env | grep -c ONELOCK_STORE"#;
    let mut command = bench.onelock(&["run", "my lock/1", "--store", &bench.url, "--", "sh", "-c", script]);
    let mut child = command.env_remove("ONELOCK_STORE").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let done = child.wait_with_output().unwrap();
    // A URL on the command line may hold a password: the command does not get it.
    assert_eq!(String::from_utf8_lossy(&done.stdout), "typed\nmy lock/1\n0\n");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "problem\n");
    let begun = Instant::now();
    assert_eq!(bench.run(&["run", "a", "--", "true"]).code, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(30), "nothing waits for a timeout");
}

/// The URL's note is the label of whoever says no other.
#[test]
fn the_note_of_the_url_is_the_label() {
    let mut bench = Bench::sqlite();
    bench.url += "?note=fleet%20seven";
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let mut all = Vec::new();
    for words in
        [&["wait", "a"][..], &["elect", "a", "--", "true"], &["run", "a", "--note", "mine", "--", "true"]]
    {
        all.push(bench.spawn(words));
        bench.wait_for_waiters("a", all.len());
    }
    let line = bench.status("a");
    let entries = ["holders", "waiters"].into_iter().flat_map(|part| line[part].as_array().unwrap());
    let notes: Vec<_> = entries.map(|entry| entry["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["fleet seven", "fleet seven", "fleet seven", "mine"]);
}
