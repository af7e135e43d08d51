//! `onelock elect`: one instance runs, whatever happens to the others, and no two ever at once.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;

use crate::common::{BEAT, Bench, Redis, Running, SHORT, STUBBORN_BEAT, children_of, folder, until};
use rustix::process::Signal;

on_every_store! {
    one_of_three_runs_through_kill_and_stop
    the_end_by_a_signal_hands_on
    an_evicted_leader_stands_again
    a_command_that_ends_is_run_again_elsewhere
}

/// Candidates, in the order in which they stand in line.
fn candidates(bench: &Bench, count: usize, beat: &str) -> Vec<Option<Running>> {
    (0..count)
        .map(|number| {
            let note = number.to_string();
            let words =
                ["elect", "a", "--ttl", SHORT, "--pause", "50ms", "--note", &note, "--", "sh", "-c", beat];
            let candidate = bench.spawn(&words);
            if number == 0 {
                until("the first beat", || !bench.history().is_empty());
            } else {
                bench.wait_for_waiters("a", number);
            }
            Some(candidate)
        })
        .collect()
}

/// The tokens of the terms so far, in order. A token that comes back had its section overlapped by another.
fn terms(bench: &Bench) -> Vec<i64> {
    let mut terms: Vec<i64> = bench.history().iter().map(|line| line.parse().unwrap()).collect();
    terms.dedup();
    assert!(terms.is_sorted_by(|a, b| a < b), "two ran at once: {terms:?}");
    terms
}

/// Waits until another term than `before` runs, and until it has run on for a while.
fn next_term(bench: &Bench, before: i64) -> i64 {
    let last = || terms(bench).last().copied().unwrap_or(0);
    until("the next term", || last() > before);
    let beats = bench.history().len();
    until("more beats of one term", || bench.history().len() > beats + 5);
    last()
}

/// Which candidate leads.
fn leader(bench: &Bench) -> usize {
    bench.status("a")["holders"][0]["note"].as_str().unwrap().parse().unwrap()
}

fn one_of_three_runs_through_kill_and_stop(bench: &Bench) {
    let mut all = candidates(bench, 3, STUBBORN_BEAT);
    let first = terms(bench)[0];
    assert_eq!(leader(bench), 0);
    let killed = all[0].take().unwrap();
    killed.signal(Signal::KILL);
    let second = next_term(bench, first);
    let stopped = leader(bench);
    assert_ne!(stopped, 0);
    all[stopped].as_ref().unwrap().signal(Signal::STOP);
    let third = next_term(bench, second);
    let last = leader(bench);
    assert!(last != 0 && last != stopped);
    // Its command has ended long since; it stands again, behind the one that leads now.
    all[stopped].as_ref().unwrap().signal(Signal::CONT);
    bench.wait_for_waiters("a", 1);
    all[last].take().unwrap().signal(Signal::KILL);
    next_term(bench, third);
    assert_eq!(leader(bench), stopped);
    let end = all[stopped].take().unwrap();
    end.signal(Signal::TERM);
    let done = end.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(terms(bench).len(), 4);
}

fn the_end_by_a_signal_hands_on(bench: &Bench) {
    let mut all = candidates(bench, 3, STUBBORN_BEAT);
    let first = terms(bench)[0];
    let leads = all[0].take().unwrap();
    leads.signal(Signal::TERM);
    let done = leads.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.err.contains("lost"), "{done:?}");
    let second = next_term(bench, first);
    assert_eq!(leader(bench), 1);
    // One that stands by leaves the line.
    let standby = all[2].take().unwrap();
    standby.signal(Signal::TERM);
    assert_eq!(standby.finish().code, Some(0));
    assert_eq!(bench.status("a")["waiters"].as_array().unwrap().len(), 0);
    let leads = all[1].take().unwrap();
    leads.signal(Signal::INT);
    assert_eq!(leads.finish().status.signal(), Some(Signal::INT.as_raw()), "as a shell expects it");
    assert_eq!((bench.status("a")["held"].clone(), terms(bench)), (false.into(), vec![first, second]));
}

/// An eviction takes the lock away before its holder knows, so here two may run for a moment.
fn an_evicted_leader_stands_again(bench: &Bench) {
    let mut all = candidates(bench, 2, BEAT);
    let first = bench.history()[0].clone();
    assert_eq!(bench.run(&["evict", "a", "--token", &first]).code, Some(0));
    until("the other one leads", || bench.status("a")["held"] == true && leader(bench) == 1);
    bench.wait_for_waiters("a", 1);
    // A place in the line is taken anew, too.
    let place = bench.status("a")["waiters"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(bench.run(&["evict", "a", "--token", &place]).code, Some(0));
    until("a new place", || {
        let token = bench.status("a")["waiters"][0]["token"].clone();
        token.as_str().is_some_and(|token| token != place)
    });
    let second = bench.status("a")["holders"][0]["token"].as_str().unwrap().to_owned();
    let beats = bench.history().len();
    until("more beats", || bench.history().len() > beats + 5);
    assert!(bench.history()[beats..].iter().all(|token| *token == second), "only the new leader runs");
    for candidate in all.iter_mut().rev() {
        let candidate = candidate.take().unwrap();
        candidate.signal(Signal::TERM);
        assert_eq!(candidate.finish().code, Some(0));
    }
}

fn a_command_that_ends_is_run_again_elsewhere(bench: &Bench) {
    let brief = r#"echo "$ONELOCK_TOKEN" >> "$HIST"; sleep 0.1; echo "$ONELOCK_TOKEN" >> "$HIST"; exit 3"#;
    let words = ["elect", "a", "--pause", "20ms", "--max-pause", "1h", "--", "sh", "-c", brief];
    let two = [bench.spawn(&words), bench.spawn(&words)];
    until("six terms", || terms(bench).len() >= 6);
    let ends = two.map(|candidate| {
        candidate.signal(Signal::TERM);
        candidate.finish()
    });
    for end in ends {
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.err.contains("the command has ended with exit code 3"), "both had a turn: {end:?}");
        assert!(end.err.contains("standing for `a` again in 20ms\n"), "{end:?}");
        assert!(end.err.contains("standing for `a` again in 40ms\n"), "each pause is longer: {end:?}");
    }
}

/// A command that cannot run would keep the store busy.
#[test]
fn a_pause_of_nothing_grows_too() {
    let bench = Bench::sqlite();
    let brief = r#"echo "$ONELOCK_TOKEN" >> "$HIST"; exit 3"#;
    let candidate = bench.spawn(&["elect", "a", "--pause", "0s", "--", "sh", "-c", brief]);
    until("four terms", || bench.history().len() >= 4);
    candidate.signal(Signal::TERM);
    let done = candidate.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        ["0s", "1ms", "2ms"].iter().all(|pause| done.err.contains(&format!("again in {pause}\n"))),
        "{done:?}"
    );
}

/// A server that keeps what it answered is killed and started again: once at once, and once after the lease has ended.
#[test]
fn one_of_three_runs_through_a_restart_of_the_store() {
    let redis = Redis::durable();
    let bench =
        Bench { dir: folder(), url: format!("{}?request_timeout=1s&connect_timeout=1s", redis.url()) };
    let all = candidates(&bench, 3, STUBBORN_BEAT);
    redis.restart(|| ());
    let after = terms(&bench).last().copied().unwrap();
    let beats = bench.history().len();
    until("beats after the restart", || bench.history().len() > beats + 5);
    redis.restart(|| {
        // Without the store nobody may run longer than its lease.
        let quiet = || {
            let beats = bench.history().len();
            std::thread::sleep(std::time::Duration::from_millis(500));
            bench.history().len() == beats
        };
        until("no more beats", quiet);
    });
    next_term(&bench, after);
    for candidate in all.into_iter().flatten() {
        candidate.signal(Signal::TERM);
        let done = candidate.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    terms(&bench);
}

/// USR1 and USR2, sent to the candidates of all hosts, are for the command: who has none yet stands on.
#[test]
fn a_signal_for_the_command_ends_no_candidate_that_stands() {
    let bench = Bench::sqlite();
    let mut all = candidates(&bench, 2, BEAT);
    let first = terms(&bench)[0];
    let (leads, stands) = (all[0].take().unwrap(), all[1].take().unwrap());
    stands.signal(Signal::USR1);
    stands.signal(Signal::USR2);
    leads.signal(Signal::TERM);
    assert_eq!(leads.finish().code, Some(0));
    next_term(&bench, first);
    stands.signal(Signal::TERM);
    let done = stands.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// A candidate that waits for a store which is not there ends as any other does.
#[test]
fn a_signal_ends_the_wait_for_a_store_that_is_away() {
    let dir = folder();
    let bench = Bench { url: format!("redis+unix://{}/away", dir.path().display()), dir };
    let away = |signal| {
        let mut candidate = bench.spawn(&["elect", "a", "--", "true"]);
        let mut said = [0; 32];
        candidate.child().stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert!(said.starts_with(b"onelock: waiting for the store"), "{}", String::from_utf8_lossy(&said));
        candidate.signal(signal);
        candidate.finish()
    };
    // Not HUP, which whoever started these tests by `nohup` has ignored for all.
    let done = away(Signal::TERM);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(away(Signal::INT).status.signal(), Some(Signal::INT.as_raw()), "as a shell expects it");
}

/// It is told to end before it has learnt of an eviction: the store says so when the lock is given back.
#[test]
fn a_leader_whose_lock_was_evicted_ends_when_it_is_told_to() {
    let bench = Bench::sqlite();
    let leads = bench.spawn(&["elect", "a", "--ttl", "1h", "--", "sh", "-c", BEAT]);
    until("the first beat", || !bench.history().is_empty());
    assert_eq!(bench.run(&["evict", "a", "--token", &bench.history()[0]]).code, Some(0));
    leads.signal(Signal::TERM);
    let done = leads.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("lost"), "{done:?}");
}

/// A candidate runs for months: the processes of a term are waited for once they have ended, also those that the command left behind.
#[test]
fn terms_leave_no_ended_processes() {
    let bench = Bench::sqlite();
    let brief = r#"setsid sleep 0 & echo "$ONELOCK_TOKEN" >> "$HIST""#;
    let words = ["elect", "a", "--pause", "1ms", "--max-pause", "50ms", "--", "sh", "-c", brief];
    let candidate = bench.spawn(&words);
    until("a dozen terms", || bench.history().len() >= 12);
    // Those of two terms at most: the last one's may be about to end.
    let left = children_of(candidate.pid());
    assert!(left.len() <= 6, "{} processes after {} terms", left.len(), bench.history().len());
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.finish().code, Some(0));
}

/// Another process of its job reads from the terminal in the background: all of the job are told so, and a candidate that has led
/// before stands on.
#[test]
fn a_terminal_that_others_read_ends_no_candidate_that_stands() {
    let bench = Bench::sqlite();
    let once = r#"echo "$ONELOCK_TOKEN" >> "$HIST"; until [ -e "$HIST.go" ]; do sleep 0.02; done"#;
    let elect = |note, command| {
        bench.spawn(&["elect", "a", "--pause", "50ms", "--note", note, "--", "sh", "-c", command])
    };
    let stands = elect("0", once);
    until("the first term", || !bench.history().is_empty());
    let leads = elect("1", BEAT);
    bench.wait_for_waiters("a", 1);
    std::fs::write(bench.dir.path().join("history.go"), "").unwrap();
    until("the other one leads", || bench.status("a")["held"] == true && leader(&bench) == 1);
    bench.wait_for_waiters("a", 1);
    let before = terms(&bench).last().copied().unwrap();
    stands.signal(Signal::TTIN);
    stands.signal(Signal::TTOU);
    leads.signal(Signal::TERM);
    assert_eq!(leads.finish().code, Some(0));
    until("the next term", || terms(&bench).last().copied().unwrap() > before);
    stands.signal(Signal::TERM);
    let done = stands.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
}
