//! A line seen and waited for: `ping`, `wait`, `watch`, `leader`, and places in `status`.

use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;

use crate::common::{Bench, PASSWORD, Redis, folder, until};
use onelock_testbed::relay::{Act, Link, Proxies, Trigger};
use rustix::process::Signal;
use serde_json::Value;

on_every_store! {
    a_store_answers_a_ping
    a_wait_ends_when_the_lock_is_free
    a_wait_has_the_codes_of_run
    waiters_are_told_their_places
    each_change_of_a_line_is_a_line
    a_leader_is_shown_and_watched
    bad_input_is_refused_before_anything_happens
}

/// Holds until it is ended.
const HOLD: &str = r#"echo held >> "$HIST"; while :; do sleep 0.05; done"#;

fn json_lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn a_store_answers_a_ping(bench: &Bench) {
    let text = bench.run(&["ping"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.out.contains("connected in ") && text.out.contains("locked and unlocked in"), "{text:?}");
    let told = json_lines(&bench.run(&["ping", "--json"]).out);
    assert!(
        told[0]["read_us"].as_u64().unwrap() > 0 && told[0]["cycle_us"].as_u64().unwrap() > 0,
        "{told:?}"
    );
    assert!(bench.url.starts_with(told[0]["store"].as_str().unwrap()), "{told:?}");
    assert_eq!(bench.run(&["list"]).out.lines().count(), 1, "nothing is left");
}

fn a_wait_ends_when_the_lock_is_free(bench: &Bench) {
    assert_eq!(bench.run(&["wait", "a"]).code, Some(0));
    let holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let mut waiter = bench.spawn(&["wait", "a"]);
    bench.wait_for_waiters("a", 1);
    assert!(waiter.is_running());
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, Some(143));
    let done = waiter.finish();
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(bench.status("a")["held"], false);
}

fn a_wait_has_the_codes_of_run(bench: &Bench) {
    let _holder = bench.spawn(&["run", "a", "--shared", "--note", "reader", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let busy = bench.run(&["wait", "a", "--no-wait"]);
    assert_eq!(busy.code, Some(75), "{busy:?}");
    assert!(busy.err.contains("`a` is busy, held by reader"), "{busy:?}");
    let late = bench.run(&["wait", "a", "--timeout", "3s"]);
    assert_eq!(late.code, Some(75), "{late:?}");
    assert!(late.err.contains("waiting for `a`, held by reader"), "{late:?}");
    assert_eq!(bench.run(&["wait", "a", "-t", "0s", "-E", "3"]).code, Some(3));
    assert_eq!(bench.run(&["wait", "a", "--no-wait", "--shared"]).code, Some(0));
    let waiter = bench.spawn(&["wait", "a"]);
    bench.wait_for_waiters("a", 1);
    waiter.signal(Signal::INT);
    assert_eq!(waiter.finish().status.signal(), Some(Signal::INT.as_raw()));
    assert_eq!(bench.status("a")["waiters"].as_array().unwrap().len(), 0, "it left the line");
    let waiter = bench.spawn(&["wait", "a"]);
    bench.wait_for_waiters("a", 1);
    let token = bench.status("a")["waiters"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(bench.run(&["evict", "a", "--token", &token]).code, Some(0));
    assert_eq!(waiter.finish().code, Some(76));
}

fn waiters_are_told_their_places(bench: &Bench) {
    let _holder = bench.spawn(&["run", "a", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let _waiters: Vec<_> = (1..=3)
        .map(|count| {
            let waiter = bench.spawn(&["wait", "a"]);
            bench.wait_for_waiters("a", count);
            waiter
        })
        .collect();
    let status = bench.status("a");
    for place in 1..=3_usize {
        assert_eq!(status["waiters"][place - 1]["place"], place, "{status}");
    }
    let table = bench.run(&["status", "a"]).out;
    let lines: Vec<_> = table.lines().collect();
    for (line, state) in
        lines[1..].iter().zip(["holds ", "waits, place 1 ", "waits, place 2 ", "waits, place 3 "])
    {
        assert!(line.starts_with(state), "{table}");
    }
}

fn each_change_of_a_line_is_a_line(bench: &Bench) {
    let mut watch = bench.onelock(&["watch", "a", "--json", "--interval", "50ms"]);
    let told = bench.dir.path().join("told");
    let watch = crate::common::Running::new({
        watch.stdout(std::fs::File::create(&told).unwrap());
        watch
    });
    let events = || -> Vec<(String, Option<String>)> {
        let line = |line: Value| {
            assert_eq!(line["name"], "a");
            (line["event"].as_str().unwrap().into(), line["note"].as_str().map(Into::into))
        };
        let text = std::fs::read_to_string(&told).unwrap();
        json_lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole)).into_iter().map(line).collect()
    };
    let until_told = |event: &str, note: Option<&str>| {
        until(&format!("{event} {note:?}"), || {
            events().last() == Some(&(event.into(), note.map(Into::into)))
        });
    };
    until_told("free", None);
    let holder = bench.spawn(&["run", "a", "--note", "first", "--", "sh", "-c", HOLD]);
    until_told("took", Some("first"));
    let waiter = bench.spawn(&["run", "a", "--note", "second", "--", "sh", "-c", HOLD]);
    until_told("joined", Some("second"));
    waiter.signal(Signal::TERM);
    until_told("left", Some("second"));
    holder.signal(Signal::TERM);
    until_told("free", None);
    let words: Vec<_> = events().into_iter().map(|(event, _)| event).collect();
    assert_eq!(words, ["free", "took", "joined", "left", "ended", "free"]);
    let _ = (holder.finish(), waiter.finish());
    watch.signal(Signal::TERM);
    assert_eq!(watch.finish().status.signal(), Some(Signal::TERM.as_raw()));
    // For people.
    let _holder = bench.spawn(&["run", "b", "--note", "me", "--", "sh", "-c", HOLD]);
    until("it holds", || bench.status("b")["held"] == true);
    let mut watch = bench.spawn(&["watch", "b"]);
    let mut line = String::new();
    let stdout = watch.child().stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert!(line.contains("Z  holds   token ") && line.ends_with("  exclusive  me\n"), "{line}");
}

fn a_leader_is_shown_and_watched(bench: &Bench) {
    let nobody = bench.run(&["leader", "a"]);
    assert_eq!((nobody.code, nobody.out.as_str()), (Some(1), "nobody leads a\n"));
    let told = bench.dir.path().join("told");
    let mut watch = bench.onelock(&["leader", "a", "--watch", "--json"]);
    watch.stdout(std::fs::File::create(&told).unwrap());
    let watch = crate::common::Running::new(watch);
    let seen = || json_lines(&std::fs::read_to_string(&told).unwrap());
    until("that nobody leads", || seen().last().is_some_and(|line| line["led"] == false));
    let leads = bench.spawn(&["elect", "a", "--note", "me", "--", "sh", "-c", HOLD]);
    bench.wait_for_line("held");
    let token = bench.status("a")["holders"][0]["token"].clone();
    let now = bench.run(&["leader", "a", "--json"]);
    let led = json_lines(&now.out).remove(0);
    assert_eq!((now.code, &led["note"], &led["token"]), (Some(0), &Value::from("me"), &token));
    assert!(led["since"].as_str().unwrap().starts_with("20"), "{led}");
    assert!(bench.run(&["leader", "a"]).out.starts_with("me leads with token "));
    until("the leader", || seen().last().is_some_and(|line| line["note"] == "me" && line["token"] == token));
    leads.signal(Signal::TERM);
    assert_eq!(leads.finish().code, Some(0));
    until("the end of its term", || seen().last().is_some_and(|line| line["led"] == false));
    assert_eq!(seen().len(), 3);
    drop(watch);
}

fn bad_input_is_refused_before_anything_happens(bench: &Bench) {
    for bad in [
        &["wait", ""][..],
        &["wait", "a\u{7}"],
        &["wait", "a", "--timeout", "soon"],
        &["watch", ""],
        &["watch", "a", "--interval", "1ms"],
        &["leader", ""],
        &["elect", "", "--", "true"],
        &["elect", "a", "--ttl", "1ns", "--", "true"],
        &["elect", "a"],
        &["ping", "--timeout", "-1s"],
        &["--store", "gopher://u:hunter2-never-printed@h", "ping"],
    ] {
        let done = bench.run(bad);
        assert_eq!(done.code, Some(64), "{bad:?}: {done:?}");
        assert!(!done.err.is_empty() && done.out.is_empty(), "{bad:?}: {done:?}");
    }
}

#[test]
fn a_store_that_is_away_or_silent_fails_a_ping() {
    let redis = Redis::start();
    let bench = Bench { dir: folder(), url: redis.url() };
    redis.signal(Signal::STOP);
    let silent = bench.run(&["ping", "--timeout", "500ms"]);
    redis.signal(Signal::CONT);
    assert_eq!(silent.code, Some(69), "{silent:?}");
    assert_eq!(bench.run(&["ping"]).code, Some(0));
    let gone = bench.run(&["--store", &format!("redis://:{PASSWORD}@127.0.0.1:1"), "ping"]);
    assert_eq!(gone.code, Some(69), "{gone:?}");
}

/// The lock was free, so the wait is over: a store that hangs when it is given back keeps nobody from ending it.
#[test]
fn a_hanging_store_does_not_keep_a_wait_from_ending() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (redis, link, proxies) = (Redis::start(), Link::new(), Proxies::default());
    let direct = Bench { dir: folder(), url: redis.url() };
    let (head, port) = direct.url.rsplit_once(':').unwrap();
    let target = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    let way = runtime.block_on(proxies.way(target, &link)).unwrap();
    let url = format!("{head}:{}?ttl=10m&waiter_lease=10m&request_timeout=10m", way.port());
    let bench = Bench { dir: folder(), url };
    let holder = direct.spawn(&["run", "the-name", "--", "sh", "-c", HOLD]);
    direct.wait_for_line("held");
    let mut waiter = bench.spawn(&["wait", "the-name"]);
    let mut said = String::new();
    let mut err = std::io::BufReader::new(waiter.child().stderr.take().unwrap());
    std::io::BufRead::read_line(&mut err, &mut said).unwrap();
    assert!(said.contains("waiting for `the-name`"), "{said}");
    // All that it asks of this name from now on is to give it back.
    link.arm(Trigger { pattern: b"the-name".into(), nth: 1, act: Act::HoldRequest });
    holder.signal(Signal::TERM);
    runtime.block_on(link.struck());
    waiter.signal(Signal::TERM);
    let done = waiter.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// What prints changes alone ends with its reader, as in `onelock watch a | grep -q free`, and not at the next change.
#[test]
fn a_watch_ends_with_its_reader() {
    let bench = Bench::sqlite();
    for words in [&["watch", "a"][..], &["leader", "a", "--watch"]] {
        let mut watch = bench.spawn(words);
        let mut out = std::io::BufReader::new(watch.child().stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        drop(out);
        until("its end", || !watch.is_running());
        assert_eq!(watch.finish().code, Some(141), "{line}");
    }
}

/// A watch goes on over an outage, and says so once.
#[test]
fn a_watch_outlives_an_outage() {
    let redis = Redis::start();
    let bench = Bench { dir: folder(), url: format!("{}?request_timeout=300ms", redis.url()) };
    let mut watch = bench.spawn(&["watch", "a", "--interval", "50ms"]);
    let mut err = std::io::BufReader::new(watch.child().stderr.take().unwrap());
    let mut out = std::io::BufReader::new(watch.child().stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(line.ends_with("  free\n"), "{line}");
    redis.signal(Signal::STOP);
    line.clear();
    std::io::BufRead::read_line(&mut err, &mut line).unwrap();
    assert!(line.contains("waiting for the store"), "{line}");
    redis.signal(Signal::CONT);
    let _holder = bench.spawn(&["run", "a", "--note", "later", "--", "sh", "-c", HOLD]);
    let mut line = String::new();
    while !line.contains("later") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut out, &mut line).unwrap() > 0, "it ended");
    }
}
