//! `onelock run --at-least` and `--max-hold`: how long a lock is held, and what is refused before the store is asked.

use std::io::ErrorKind;
use std::net::TcpListener;

use crate::common::{BEAT, Bench, SHORT, children_of, folder, group_alive, until};
use rustix::process::Signal;

on_every_store! {
    a_short_command_leaves_the_lock_taken
    the_least_time_has_an_end
    a_hold_that_was_waited_for_outlives_its_onelock
    a_longest_hold_ends_the_command_and_the_least_time_goes_on
    a_command_that_cannot_be_executed_leaves_the_lock_taken
    an_eviction_is_noticed_long_before_the_least_time
}

const HOUR: u64 = 3_600_000;

/// How long the store keeps the only holder of `a` if nobody renews; etcd does not say it.
fn left(bench: &Bench) -> Option<u64> {
    let status = bench.status("a");
    assert_eq!(status["holders"].as_array().unwrap().len(), 1, "{status}");
    status["holders"][0]["expires_in_ms"].as_u64()
}

/// It is taken for most of an hour, and whoever comes meanwhile does not run. An eviction frees it.
fn check_taken(bench: &Bench) {
    // Longer than the ttl of a hold that was waited for.
    let wait = match left(bench) {
        Some(left) => {
            assert!(left > HOUR / 2 && left <= HOUR, "{left}");
            "0s"
        }
        None => "8s",
    };
    let second =
        bench.run(&["run", "a", "--wait", wait, "-E", "9", "--", "sh", "-c", "echo second >> $HIST"]);
    assert_eq!(second.code, Some(9), "{second:?}");
    assert!(!bench.history().iter().any(|line| line == "second"));
    let token = bench.status("a")["holders"][0]["token"].as_str().unwrap().to_owned();
    assert_eq!(bench.run(&["evict", "a", "--token", &token]).code, Some(0));
    assert_eq!(bench.run(&["run", "a", "--no-wait", "--", "true"]).code, Some(0));
}

fn a_short_command_leaves_the_lock_taken(bench: &Bench) {
    let script = r#"echo "$ONELOCK_TOKEN" >> "$HIST"; exit 3"#;
    let first = bench.run(&["run", "a", "--at-least", "1h", "-v", "--", "sh", "-c", script]);
    assert_eq!(first.code, Some(3), "{first:?}");
    assert!(first.err.contains("`a` stays taken for at least another 59m"), "{first:?}");
    assert_eq!(bench.status("a")["holders"][0]["token"], bench.history()[0].as_str());
    check_taken(bench);
}

fn the_least_time_has_an_end(bench: &Bench) {
    let first = bench.run(&["run", "a", "--at-least", SHORT, "--ttl", "1s", "--", "true"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(left(bench).unwrap() <= 6_000);
    let next = bench.run(&["run", "a", "-v", "--", "true"]);
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(next.err.contains("gave `a` back"), "{next:?}");
    assert_eq!(bench.status("a")["held"], false);
}

/// It began with the waiter's lease; before the command starts, the store has the whole time.
fn a_hold_that_was_waited_for_outlives_its_onelock(bench: &Bench) {
    let before =
        bench.spawn(&["run", "a", "--", "sh", "-c", r#"while [ ! -e "$HIST.go" ]; do sleep 0.02; done"#]);
    until("the first holder", || bench.status("a")["held"] == true);
    let waiter = bench.spawn(&["run", "a", "--at-least", "1h", "--ttl", SHORT, "--", "sh", "-c", BEAT]);
    bench.wait_for_waiters("a", 1);
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    assert_eq!(before.finish().code, Some(0));
    until("a beat", || !bench.history().is_empty());
    let group = children_of(waiter.deadman())[0];
    waiter.signal(Signal::KILL);
    until("the group's end", || !group_alive(group));
    check_taken(bench);
}

fn a_longest_hold_ends_the_command_and_the_least_time_goes_on(bench: &Bench) {
    let bounds = |name, more: &[&str]| {
        let words = ["run", name, "--max-hold", "3s", "--grace", "1s"];
        let done = bench.run(&[&words, more, &["--", "sh", "-c", BEAT]].concat());
        assert_eq!(done.code, Some(76), "{done:?}");
        assert!(done.err.contains("longest hold") && !done.err.contains("renewed"), "{done:?}");
        assert!(!bench.history().is_empty(), "it ran before");
    };
    bounds("b", &[]);
    assert_eq!(bench.status("b")["held"], false);
    bounds("a", &["--at-least", "1h"]);
    check_taken(bench);
}

fn a_command_that_cannot_be_executed_leaves_the_lock_taken(bench: &Bench) {
    assert_eq!(bench.run(&["run", "a", "--at-least", "1h", "--", "no-such-program"]).code, Some(127));
    check_taken(bench);
}

/// Renewals come every third of the ttl from the beginning on.
fn an_eviction_is_noticed_long_before_the_least_time(bench: &Bench) {
    let words = ["run", "a", "--at-least", "1h", "--ttl", SHORT, "--", "sh", "-c", BEAT];
    let running = bench.spawn(&words);
    until("a beat", || !bench.history().is_empty());
    assert_eq!(bench.run(&["evict", "a", "--token", &bench.history()[0]]).code, Some(0));
    let done = running.finish();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("evicted"), "{done:?}");
    assert_eq!(bench.status("a")["held"], false);
}

/// The grace fits into the leases that follow the first one, which is as long as the least time.
#[test]
fn a_command_outlives_the_least_time() {
    let bench = Bench::sqlite();
    let words = ["run", "a", "--at-least", "15s", "--ttl", SHORT, "--grace", "5s", "--", "sh", "-c"];
    let script = r#"while [ ! -e "$HIST.go" ]; do sleep 0.02; done; exit 3"#;
    let mut running = bench.spawn(&[&words[..], &[script]].concat());
    until("the first lease is over", || {
        assert!(running.is_running());
        bench.status("a")["holders"][0]["age_ms"].as_u64().is_some_and(|age| age > 16_000)
    });
    std::fs::write(bench.history_file().with_extension("go"), "").unwrap();
    let done = running.finish();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert_eq!(bench.status("a")["held"], false, "given back at once");
}

#[test]
fn what_cannot_be_is_refused_before_the_store_is_asked() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let port = server.local_addr().unwrap().port();
    let refused = |scheme: &str, options: &[&str], why: &str| {
        let bench = Bench { dir: folder(), url: format!("{scheme}://127.0.0.1:{port}") };
        let script = r#"echo ran >> "$HIST""#;
        let done = bench.run(&[&["run", "a", "--wait", "5s"], options, &["--", "sh", "-c", script]].concat());
        assert_eq!(done.code, Some(64), "{scheme} {options:?}: {done:?}");
        assert!(done.err.contains(why), "{scheme} {options:?}: {done:?}");
        assert!(bench.history().is_empty(), "{scheme} {options:?}");
        let asked = server.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(asked, Err(ErrorKind::WouldBlock), "{scheme} {options:?} asked the store");
    };
    refused("redis", &["--at-least", "0s"], "--at-least is from 10ms to 1day");
    refused("redis", &["--at-least", "2d"], "--at-least is from 10ms to 1day");
    refused("redis", &["--at-least", "soon"], "--at-least");
    refused("redis", &["--ttl", "2d"], "--ttl is from 10ms to 1day");
    refused("redis", &["--max-hold", "5s"], "leaves the command no time");
    refused("redis", &["--max-hold", "1ms", "--grace", "0s"], "leaves the command no time");
    for (scheme, there) in [
        ("zk", cfg!(feature = "zk")),
        ("postgres+session", cfg!(feature = "postgres")),
        ("mysql+session", cfg!(feature = "mysql")),
    ] {
        let why = if there { "--at-least needs a store" } else { "is not compiled in" };
        refused(scheme, &["--at-least", "5m"], why);
    }
    refused("redis", &["--permits", "3", "--weight", "0"], "a permit of 3 weighs 1 to 3, not 0");
    refused("redis", &["--permits", "3", "--weight", "4"], "a permit of 3 weighs 1 to 3, not 4");
    refused("redis", &["--weight", "2"], "--permits");
    refused("redis", &["--shared", "--weight", "2"], "permit");
    // The same store is asked where nothing is wrong.
    let bench = Bench { dir: folder(), url: format!("redis://127.0.0.1:{port}") };
    let words =
        ["run", "a", "--wait", "300ms", "--at-least", "5m", "--permits", "3", "--weight", "3", "--", "true"];
    assert_eq!(bench.run(&words).code, Some(69));
    assert!(server.accept().is_ok());
}

/// What the store keeps when onelock has ended, on a server each.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres"))]
mod server {
    use onelock_testbed::servers;

    use super::*;

    fn check(url: String) {
        a_short_command_leaves_the_lock_taken(&Bench { dir: folder(), url: url.clone() });
        a_hold_that_was_waited_for_outlives_its_onelock(&Bench { dir: folder(), url });
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn postgres() {
        let runtime = runtime();
        let server = runtime.block_on(servers::postgres::PostgresServer::start(&[])).unwrap();
        check(format!("postgres://postgres@127.0.0.1:{}/postgres", server.port()));
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn mariadb() {
        let runtime = runtime();
        let server = runtime.block_on(servers::mariadb::MariaDb::start(&[])).unwrap();
        check(format!("mariadb://root@127.0.0.1:{}/locks?tls=off", server.port()));
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn etcd() {
        let runtime = runtime();
        let server = runtime.block_on(servers::etcd::Member::single(None)).unwrap();
        check(format!("etcd://127.0.0.1:{}", server.port()));
    }
}
