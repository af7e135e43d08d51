//! `onelock run` started in odd surroundings: signals ignored, descriptors closed or few.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{BEAT, Bench, PASSWORD, Redis, Running, SHORT, children_of, folder, group_alive, until};
use onelock_testbed::servers::clock::{self, SteppedClock};
use rustix::process::Signal;

/// The program, started by another one that does something first.
fn through(bench: &Bench, starter: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(env!("CARGO_BIN_EXE_onelock")).args(words);
    command.env("ONELOCK_STORE", &bench.url).env("HIST", bench.history_file());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Every signal that can be ignored is.
const IGNORING: [&str; 2] = ["env", "--ignore-signal"];

#[test]
fn the_end_of_the_command_is_seen_with_every_signal_ignored() {
    let bench = Bench::sqlite();
    let words = ["run", "a", "--ttl", "1h", "--", "sh", "-c", "exit 3"];
    let done = Running::new(through(&bench, &IGNORING, &words)).finish();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert_eq!(bench.status("a")["held"], false);
}

#[test]
fn a_killed_onelock_ends_the_command_with_every_signal_ignored() {
    let bench = Bench::sqlite();
    let words = ["run", "a", "--ttl", SHORT, "--", "sh", "-c", BEAT];
    let first = Running::new(through(&bench, &IGNORING, &words));
    until("a beat", || !bench.history().is_empty());
    let deadman = first.deadman();
    let group = children_of(deadman)[0];
    first.signal(Signal::KILL);
    until("the group's end", || !group_alive(group));
    until("the deadman's end", || !group_alive(deadman));
}

#[test]
fn the_command_hears_of_its_children_though_its_ancestors_do_not() {
    let bench = Bench::sqlite();
    let ignored = "grep SigIgn: /proc/self/status";
    let done = Running::new(through(
        &bench,
        &["env", "--ignore-signal=CHLD"],
        &["run", "a", "--", "sh", "-c", ignored],
    ))
    .finish();
    let set = u64::from_str_radix(done.out.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(set >> (Signal::CHILD.as_raw() - 1) & 1, 0, "{done:?}");
}

#[test]
fn closed_standard_streams_are_no_harm() {
    let bench = Bench::sqlite();
    let closing = ["sh", "-c", r#"exec "$@" <&- >&- 2>&-"#, "sh"];
    let words = ["run", "a", "-v", "--", "sh", "-c", r#"echo "$ONELOCK_NAME" >> "$HIST"; echo out; exit 3"#];
    let done = Running::new(through(&bench, &closing, &words)).finish();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert_eq!(bench.history(), ["a"]);
}

#[test]
fn too_few_descriptors_are_an_error_and_no_panic() {
    let bench = Bench::sqlite();
    for limit in ["6", "7", "8", "10", "14", "18", "22", "26"] {
        let few = ["sh", "-c", r#"ulimit -n "$0"; exec "$@""#, limit];
        let done = Running::new(through(&bench, &few, &["run", "a", "--", "true"])).finish();
        assert!(matches!(done.code, Some(0 | 69 | 70)), "ulimit -n {limit}: {done:?}");
    }
}

#[test]
fn a_hanging_store_does_not_keep_onelock_from_ending() {
    let redis = Redis::start();
    for signal in [Signal::TERM, Signal::INT] {
        let bench = Bench { dir: folder(), url: format!("{}?request_timeout=10m", redis.url()) };
        let script = r#"echo up >> "$HIST"; while [ ! -e "$HIST.go" ]; do sleep 0.02; done; exit 3"#;
        let running = bench.spawn(&["run", "a", "--ttl", "10m", "--", "sh", "-c", script]);
        bench.wait_for_line("up");
        let deadman = running.deadman();
        redis.signal(Signal::STOP);
        std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
        until("the deadman's end", || !group_alive(deadman));
        running.signal(signal);
        let done = running.finish();
        redis.signal(Signal::CONT);
        assert_eq!(done.code, Some(3), "{done:?}");
        assert!(done.err.contains("told to end"), "{done:?}");
    }
}

#[test]
fn dying_of_int_is_passed_on_and_dying_of_term_is_a_code() {
    let bench = Bench::sqlite();
    for (signal, code) in [(Signal::INT, None), (Signal::QUIT, None), (Signal::TERM, Some(143))] {
        let script = format!(r#"ulimit -c 0; kill -{} $$"#, signal.as_raw());
        let done = bench.run(&["run", "a", "--", "sh", "-c", &script]);
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.status.signal(), code.is_none().then_some(signal.as_raw()), "{done:?}");
        assert!(!done.status.core_dumped());
        assert_eq!(bench.status("a")["held"], false);
    }
}

#[test]
fn a_new_file_follows_the_umask() {
    for (umask, mode) in [("002", 0o664), ("027", 0o640), ("077", 0o600)] {
        let bench = Bench::sqlite();
        let starter = ["sh", "-c", r#"umask "$0"; exec "$@""#, umask];
        let script = r#"for file in "${HIST%history}"locks.db*; do stat -c %a "$file" >> "$HIST"; done"#;
        let done = Running::new(through(&bench, &starter, &["run", "a", "--", "sh", "-c", script])).finish();
        assert_eq!(done.code, Some(0), "{done:?}");
        // With its two companions.
        assert_eq!(bench.history(), [format!("{mode:o}"), format!("{mode:o}"), format!("{mode:o}")]);
    }
}

#[test]
fn a_store_that_nobody_shares_is_named() {
    // Of a quorum each process has a member of its own then: where another is lost two hold.
    let shared = Bench::sqlite();
    let quorum = format!("quorum://?members={}|memory://a|memory://b", shared.url);
    for url in ["memory://", &quorum] {
        let done = Bench { dir: folder(), url: url.into() }.run(&["run", "a", "--", "true"]);
        assert_eq!(done.code, Some(0));
        assert!(done.err.contains("nobody else sees what it locks"), "{done:?}");
    }
}

#[test]
fn the_note_names_the_user_without_the_environment() {
    let bench = Bench::sqlite();
    let words = ["run", "a", "--", "sh", "-c", r#"echo up >> "$HIST"; exec sleep 60"#];
    let running = Running::new(through(&bench, &["env", "-u", "USER", "-u", "LOGNAME"], &words));
    bench.wait_for_line("up");
    let name = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let status = bench.status("a");
    let note = status["holders"][0]["note"].as_str().unwrap();
    assert!(note.starts_with(&format!("{}@", name.trim())), "{note}");
    running.signal(Signal::TERM);
    running.finish();
}

/// Without a battery a clock begins in 1970 at each boot, until somebody sets it: others may have held since before.
#[test]
fn a_clock_that_was_not_set_yet_is_no_harm() {
    let bench = Bench::sqlite();
    let holder = bench.spawn(&["run", "a", "--", "sh", "-c", r#"echo up >> "$HIST"; exec sleep 60"#]);
    bench.wait_for_line("up");
    until("a hold of a second", || bench.status("a")["holders"][0]["age_ms"].as_u64() > Some(1_000));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let stepped = SteppedClock::new(bench.dir.path()).unwrap();
    stepped.set_wall(-i64::try_from(now.as_millis()).unwrap()).unwrap();
    let starter = clock::words(bench.dir.path()).unwrap();
    let starter: Vec<_> = starter.iter().map(|word| word.to_str().unwrap()).collect();
    for (words, code) in [(&["run", "a", "--no-wait", "--", "true"][..], 75), (&["leader", "a"], 0)] {
        let done = Running::new(through(&bench, &starter, words)).finish();
        assert_eq!(done.code, Some(code), "{done:?}");
    }
    holder.signal(Signal::TERM);
    holder.finish();
}

#[test]
fn each_message_is_one_write() {
    let bench = Bench::sqlite();
    // Keeps writes apart.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let status =
        bench.onelock(&["run", "a", "-v", "--", "true"]).stderr(OwnedFd::from(theirs)).status().unwrap();
    assert!(status.success());
    ours.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    let writes: Vec<String> = std::iter::from_fn(|| {
        let length = ours.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    })
    .collect();
    assert_eq!(writes.len(), 2, "{writes:?}");
    assert!(writes.iter().all(|write| write.starts_with("onelock: ") && write.ends_with('\n')), "{writes:?}");
}

/// Nobody reads what onelock has to say, as when a pager waits for its user: what still works keeps the lock.
#[test]
fn a_full_pipe_costs_no_lock() {
    let bench = Bench::sqlite();
    let (_unread, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while std::io::Write::write(&mut full, &[b' '; 512]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let script = r#"(while [ ! -e "$HIST.go" ]; do sleep 0.02; done; echo done >> "$HIST") & echo $$ >> "$HIST"; exit 3"#;
    let mut command = bench.onelock(&["run", "a", "--ttl", SHORT, "--", "sh", "-c", script]);
    command.stderr(full);
    let running = Running::new(command);
    until("the command's end", || !bench.history().is_empty());
    let group = bench.history()[0].parse().unwrap();
    let token = bench.status("a")["holders"][0]["token"].clone();
    // It says that it waits for what the command has left running. Without renewals that is ended before the lease.
    let lease = Instant::now() + Duration::from_secs(12);
    until("two leases", || Instant::now() > lease || !group_alive(group));
    assert!(group_alive(group), "it was ended under a store that answers");
    assert_eq!(bench.status("a")["holders"][0]["token"], token, "another one holds");
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    assert_eq!(running.finish().code, Some(3));
    assert_eq!(bench.history()[1..], ["done"]);
}

#[test]
fn a_url_in_a_wrong_place_shows_no_password() {
    let bench = Bench::sqlite();
    let url = format!("redis://me:{PASSWORD}@127.0.0.1:1");
    let of_sentinels = format!("redis+sentinel://h/m?sentinel_password={PASSWORD}");
    for words in [
        &[&*url, "status", "a"][..],
        &[&of_sentinels, "status", "a"],
        &["run", "a", "-E", &of_sentinels, "--", "true"],
        &["status", "a", &url],
        &["status", &url.replace("redis", "Redis")],
        &["run", "a", &url, "--", "true"],
        &["evict", "a", "--token", &url],
        &["completions", &url],
    ] {
        let done = bench.run(words);
        assert_eq!(done.code, Some(64), "{words:?}: {done:?}");
        assert!(done.err.contains("--store"), "{done:?}");
    }
    let done = bench.run(&["man", &url]);
    assert!(done.code == Some(64) && !done.err.contains(PASSWORD), "{done:?}");
    assert!(bench.run(&[]).err.contains("Usage: onelock"), "the help has a URL, too");
    // What is wrong elsewhere is named.
    let done = bench.run(&["--store", &url, "status", "a", "--bogus"]);
    assert!(done.err.contains("--bogus"), "{done:?}");
}
