//! `onelock run` in a PID namespace of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::{Command, Stdio};

use common::{Bench, Output, Running, children_of, until};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};

/// Given how to make a namespace.
type Case = fn(&[&str]);

const CASES: [(&str, Case); 5] = [
    (
        "the_first_process_hears_signals_while_the_store_is_away",
        the_first_process_hears_signals_while_the_store_is_away,
    ),
    ("it_may_be_the_first_process", it_may_be_the_first_process),
    ("a_killed_onelock_ends_the_command", a_killed_onelock_ends_the_command),
    ("a_recycled_group_is_not_signalled", a_recycled_group_is_not_signalled),
    ("another_namespace_s_process_table_is_refused", another_namespace_s_process_table_is_refused),
];

/// Whether a namespace may be made, as this user or as root of a user namespace.
fn maker() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] =
        [&["unshare", "--pid", "--fork"], &["unshare", "--user", "--map-root-user", "--pid", "--fork"]];
    ways.into_iter().find(|way| {
        let mut command = Command::new(way[0]);
        let command = command.args(&way[1..]).args(["--mount-proc", "true"]);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    })
}

fn main() {
    let maker = maker();
    let trials = CASES.map(|(name, case)| match maker {
        Some(maker) => Trial::test(name, move || {
            std::panic::catch_unwind(|| case(maker)).map_err(|_| Failed::without_message())
        }),
        None => {
            Trial::test(name, || Ok(())).with_ignored_flag(true).with_kind("unshare(1) is not permitted here")
        }
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// Runs `words` in a namespace, where `$ONELOCK` is the program.
fn within(bench: &Bench, maker: &[&str], words: &[&str]) -> Output {
    let mut command = Command::new(maker[0]);
    command.args(&maker[1..]).args(words);
    command.env("ONELOCK", env!("CARGO_BIN_EXE_onelock")).env("ONELOCK_STORE", &bench.url);
    command.env("HIST", bench.history_file());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::new(command).finish()
}

fn it_may_be_the_first_process(maker: &[&str]) {
    let bench = Bench::sqlite();
    let onelock = env!("CARGO_BIN_EXE_onelock");
    for (script, code) in
        [("exit 3", 3), ("kill -INT $$", 130), ("(sleep 0.2; echo late >> $HIST) & exit 4", 4)]
    {
        let done = within(&bench, maker, &["--mount-proc", onelock, "run", "a", "--", "sh", "-c", script]);
        assert_eq!(done.code, Some(code), "{done:?}");
    }
    assert_eq!(bench.history(), ["late"], "what was left running was waited for");
}

fn a_killed_onelock_ends_the_command(maker: &[&str]) {
    let bench = Bench::sqlite();
    let script = r#"
        $ONELOCK run a --ttl 6s -- sh -c 'while :; do echo beat >> "$HIST"; sleep 0.02; done' & first=$!
        until [ -s "$HIST" ]; do sleep 0.02; done
        kill -KILL $first
        $ONELOCK run a -- sh -c 'echo next >> "$HIST"'"#;
    let done = within(&bench, maker, &["--mount-proc", "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(bench.history().iter().position(|line| line == "next"), Some(bench.history().len() - 1));
}

/// The command has ended and onelock was killed: its group's number is another process's then.
fn a_recycled_group_is_not_signalled(maker: &[&str]) {
    let bench = Bench::sqlite();
    let script = r#"
        (exec env --ignore-signal=CHLD $ONELOCK run a --ttl 3s -- sh -c 'echo $$ > "$HIST"') & first=$!
        until [ -s "$HIST" ]; do sleep 0.02; done
        group=$(cat "$HIST")
        # Until it is over, or until it should have been: a hanging one is killed.
        for i in $(seq 250); do kill -0 $first 2>/dev/null || break; sleep 0.02; done
        kill -KILL $first 2>/dev/null
        wait $first
        for i in $(seq 50); do
            echo $((group - 1)) > /proc/sys/kernel/ns_last_pid || exit 9
            setsid sh -c 'sleep 1' & other=$!
            if [ $other = $group ]; then wait $other; exit $?; fi
            kill $other; wait $other
        done
        exit 8"#;
    let done = within(&bench, maker, &["--mount-proc", "setsid", "--wait", "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "137: it was killed; 8, 9: the number cannot be had: {done:?}");
}

fn another_namespace_s_process_table_is_refused(maker: &[&str]) {
    let bench = Bench::sqlite();
    let onelock = env!("CARGO_BIN_EXE_onelock");
    let done = within(&bench, maker, &[onelock, "run", "a", "--", "sh", "-c", "echo in >> $HIST"]);
    assert_eq!(done.code, Some(70), "{done:?}");
    assert!(done.err.contains("mount it"), "{done:?}");
    assert!(bench.history().is_empty());
}

/// A signal that the first process of a namespace does not handle is lost.
fn the_first_process_hears_signals_while_the_store_is_away(maker: &[&str]) {
    for words in [&["run", "a", "--", "true"][..], &["wait", "a"]] {
        let bench = Bench { url: "redis://127.0.0.1:1".into(), ..Bench::sqlite() };
        let said = bench.dir.path().join("said");
        let mut command = Command::new(maker[0]);
        command
            .args(&maker[1..])
            .args(["--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_onelock")])
            .args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.env("ONELOCK_STORE", &bench.url).stderr(std::fs::File::create(&said).unwrap());
        let running = Running::new(command);
        until("it waits", || std::fs::read_to_string(&said).unwrap().contains("waiting for the store"));
        let onelock = children_of(running.pid())[0];
        kill_process(Pid::from_raw(onelock).unwrap(), Signal::TERM).unwrap();
        assert_eq!(running.finish().code, Some(143), "{words:?}");
    }
}
