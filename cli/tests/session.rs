//! `onelock run` on session locks, which the server frees when their connection closes.

use crate::common::{Bench, STUBBORN_BEAT, children_of, folder, group_alive, until};
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use rustix::process::Signal;

/// A command that ignores TERM outlives its onelock by a third of the lease.
fn a_killed_onelock_keeps_the_lock_until_the_command_has_ended(url: String) {
    let bench = Bench { dir: folder(), url };
    let first = bench.spawn(&["run", "a", "--ttl", "9s", "--", "sh", "-c", STUBBORN_BEAT]);
    until("the first beat", || !bench.history().is_empty());
    let group = children_of(first.deadman())[0];
    first.signal(Signal::KILL);
    let second =
        bench.run(&["run", "a", "--ttl", "9s", "--", "sh", "-c", r#"echo "$ONELOCK_TOKEN" >> "$HIST""#]);
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(!group_alive(group), "the first command ran on");
    let history: Vec<i64> = bench.history().iter().map(|line| line.parse().unwrap()).collect();
    let (last, before) = history.split_last().unwrap();
    assert!(before.iter().all(|token| token < last), "both ran at once: {history:?}");
}

#[test]
fn postgres() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(PostgresServer::start(&[])).unwrap();
    let url = format!("postgres+session://postgres@127.0.0.1:{}/postgres", server.port());
    a_killed_onelock_keeps_the_lock_until_the_command_has_ended(url);
}

#[test]
fn mariadb() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(MariaDb::start(&[])).unwrap();
    let url = format!("mariadb+session://root@127.0.0.1:{}/locks?tls=off", server.port());
    a_killed_onelock_keeps_the_lock_until_the_command_has_ended(url);
}
