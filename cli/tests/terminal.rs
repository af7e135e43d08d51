//! `onelock run` under a shell on a real terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::common::terminal::Terminal;
use crate::common::{Bench, until};

/// Runs until the test says so, by bash: a shell that uses vfork(2) hangs when Ctrl-Z stops its child before the exec.
const WORK: &str =
    r#"echo up >> "$HIST"; while [ ! -e "$HIST.go" ]; do sleep 0.02; done; echo end >> "$HIST""#;

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

fn go(bench: &Bench) {
    fs::write(bench.history_file().with_extension("go"), "").unwrap();
}

/// A script with the program in it, for the shell to run.
fn script(bench: &Bench, text: &str) -> String {
    let path = bench.dir.path().join("script");
    fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// The shell has the terminal: what is typed comes to it.
fn wait_for_prompt(bench: &Bench, terminal: &mut Terminal) {
    terminal.types("echo prompt >> $HIST\n");
    bench.wait_for_line("prompt");
}

#[test]
fn the_command_can_be_talked_to() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    terminal.types("$ONELOCK run a -- sh -c 'echo up >> $HIST; read x; echo \"got $x\" >> $HIST'\n");
    bench.wait_for_line("up");
    terminal.types("words\n");
    bench.wait_for_line("got words");
    wait_for_prompt(&bench, &mut terminal);
}

#[test]
fn a_pager_behind_it_keeps_the_terminal() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    // Stands for less(1), which reads its keys from the terminal.
    let pager = "sh -c 'read key < /dev/tty; echo \"key $key\" >> $HIST'";
    terminal.types(&format!("$ONELOCK run a -- bash -c '{WORK}' | {pager}\n"));
    bench.wait_for_line("up");
    terminal.types("q\n");
    bench.wait_for_line("key q");
    assert_eq!(bench.status("a")["held"], true);
    go(&bench);
    bench.wait_for_line("end");
    wait_for_prompt(&bench, &mut terminal);
}

#[test]
fn a_script_reads_while_a_run_is_in_its_background() {
    let bench = Bench::sqlite();
    let run = format!("$ONELOCK run a -- bash -c '{WORK}' &");
    let read = r#"until [ -s "$HIST" ]; do sleep 0.02; done; read x; echo "got $x" >> "$HIST"; wait"#;
    let script = script(&bench, &format!("{run}\n{read}"));
    let mut terminal = Terminal::open(&bench);
    terminal.types(&format!("{script}\n"));
    bench.wait_for_line("up");
    terminal.types("words\n");
    bench.wait_for_line("got words");
    go(&bench);
    bench.wait_for_line("end");
    wait_for_prompt(&bench, &mut terminal);
}

#[test]
fn in_a_script_the_command_gets_the_terminal_when_it_asks() {
    let bench = Bench::sqlite();
    let ask = r#"$ONELOCK run a -- sh -c 'read x < /dev/tty; echo "got $x" >> $HIST'"#;
    let script = script(&bench, &format!("echo up >> $HIST\n{ask}\nread y; echo \"then $y\" >> $HIST"));
    let mut terminal = Terminal::open(&bench);
    terminal.types(&format!("{script}\n"));
    bench.wait_for_line("up");
    terminal.types("words\n");
    bench.wait_for_line("got words");
    terminal.types("more\n");
    bench.wait_for_line("then more");
    wait_for_prompt(&bench, &mut terminal);
}

#[test]
fn ctrl_c_ends_a_loop_of_the_shell() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    let turn = r#"$ONELOCK run a -- sh -c 'echo up >> "$HIST"; exec sleep 60'; echo next >> "$HIST""#;
    terminal.types(&format!("for i in 1 2 3; do {turn}; done\n"));
    bench.wait_for_line("up");
    terminal.types(CTRL_C);
    wait_for_prompt(&bench, &mut terminal);
    assert_eq!(bench.history(), ["up", "prompt"]);
}

#[test]
fn ctrl_c_ends_a_script() {
    let bench = Bench::sqlite();
    let turn = r#"$ONELOCK run a -- sh -c 'echo up >> "$HIST"; exec sleep 60'; echo next >> "$HIST""#;
    let script = script(&bench, &format!("for i in 1 2 3; do {turn}; done"));
    let mut terminal = Terminal::open(&bench);
    terminal.types(&format!("{script}\n"));
    bench.wait_for_line("up");
    terminal.types(CTRL_C);
    wait_for_prompt(&bench, &mut terminal);
    assert_eq!(bench.history(), ["up", "prompt"]);
}

#[test]
fn ctrl_c_ends_a_script_whose_command_has_the_terminal() {
    let bench = Bench::sqlite();
    let read = r#"read x < /dev/tty; echo "got $x" >> "$HIST"; exec sleep 60"#;
    let script = script(&bench, &format!("$ONELOCK run a -- sh -c '{read}'; echo next >> $HIST"));
    let mut terminal = Terminal::open(&bench);
    terminal.types(&format!("{script}\n"));
    terminal.types("words\n");
    bench.wait_for_line("got words");
    terminal.types(CTRL_C);
    wait_for_prompt(&bench, &mut terminal);
    assert_eq!(bench.history(), ["got words", "prompt"]);
}

/// Ctrl-S stops what is shown, not what is done: who waits keeps its place, and holds when it is its turn.
#[test]
fn a_stopped_terminal_costs_no_place_in_line() {
    let mut bench = Bench::sqlite();
    bench.url.push_str("?waiter_lease=2s");
    let first = bench.spawn(&["run", "a", "--", "bash", "-c", WORK]);
    bench.wait_for_line("up");
    let mut terminal = Terminal::open(&bench);
    terminal.types("TERM=xterm $ONELOCK run a -- sh -c 'echo next >> $HIST'\n");
    terminal.wait_for("waiting for `a`");
    terminal.types("\x13");
    let place = || bench.status("a")["waiters"][0]["token"].clone();
    let (begun, before) = (Instant::now(), place());
    until("two of its leases", || begun.elapsed() > Duration::from_secs(4) || place() != before);
    assert_eq!(place(), before, "its place in line");
    go(&bench);
    bench.wait_for_line("next");
    assert_eq!(first.finish().code, Some(0));
}

/// Where no line can be drawn again one line says it; where only colours are not wanted it is drawn.
#[test]
fn every_terminal_is_told_what_is_waited_for() {
    let bench = Bench::sqlite();
    let _first = bench.spawn(&["run", "a", "--", "bash", "-c", WORK]);
    bench.wait_for_line("up");
    for (settings, shown) in
        [("TERM=dumb", "onelock: waiting for `a`"), ("TERM=xterm NO_COLOR=1", "\u{1b}[2K")]
    {
        let mut terminal = Terminal::open(&bench);
        terminal.types(&format!("{settings} $ONELOCK run a -- true\n"));
        terminal.wait_for(shown);
        terminal.wait_for("waiting for `a`");
    }
}

/// The shell's user types at the place where the line would be drawn again and again.
#[test]
fn a_job_in_the_background_draws_nothing() {
    let bench = Bench::sqlite();
    let _first = bench.spawn(&["run", "a", "--", "bash", "-c", WORK]);
    bench.wait_for_line("up");
    let mut terminal = Terminal::open(&bench);
    terminal.types("TERM=xterm $ONELOCK run a -- sh -c 'echo next >> $HIST' &\n");
    terminal.wait_for("onelock: waiting for `a`");
    go(&bench);
    bench.wait_for_line("next");
    assert!(!terminal.shown().contains("\u{1b}[2K"), "{}", terminal.shown());
}

#[test]
fn ctrl_z_says_how_long_the_command_has() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    terminal.types(&format!("$ONELOCK run a --ttl 60s --grace 20s -- bash -c '{WORK}'\n"));
    bench.wait_for_line("up");
    terminal.types(CTRL_Z);
    terminal.wait_for("the command is ended and the lock lost");
    let shown = terminal.shown();
    let seconds = shown.split_once("continued within ").unwrap().1.split_once("s ").unwrap().0;
    assert!(seconds.parse::<u64>().unwrap() <= 40, "TERM comes 20s before the deadline: {shown}");
    wait_for_prompt(&bench, &mut terminal);
    go(&bench);
    terminal.types("fg\n");
    bench.wait_for_line("end");
}

#[test]
fn nested_runs_stop_and_go_on() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    let options = "--ttl 10m";
    terminal.types(&format!("$ONELOCK run a {options} -- $ONELOCK run b {options} -- bash -c '{WORK}'\n"));
    bench.wait_for_line("up");
    terminal.types(CTRL_Z);
    wait_for_prompt(&bench, &mut terminal);
    go(&bench);
    assert!(!bench.history().contains(&"end".into()));
    terminal.types("fg\n");
    bench.wait_for_line("end");
    until("both locks free", || ["a", "b"].iter().all(|name| bench.status(name)["held"] == false));
}

#[test]
fn a_command_that_stops_itself_gives_the_terminal_back() {
    let bench = Bench::sqlite();
    let mut terminal = Terminal::open(&bench);
    let stop = r#"echo up >> "$HIST"; kill -STOP $$; echo on >> "$HIST""#;
    terminal.types(&format!("$ONELOCK run a --ttl 10m -- sh -c '{stop}'\n"));
    bench.wait_for_line("up");
    wait_for_prompt(&bench, &mut terminal);
    terminal.types("fg\n");
    bench.wait_for_line("on");
}
