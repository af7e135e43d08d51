//! What becomes of the server's counter and of the ceiling above it.

use std::time::Duration;

use onelock_conformance::servers::Place;
use onelock_core::ErrorKind;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::numbers::{draw, drawn_until_a_crash};
use crate::server::{Server as _, open};

const BLOCK: i64 = 1 << 20;

/// The server is killed while clients draw numbers, some of them just when a ceiling is raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_crashes() {
    let server = MariaDb::start_with(&[]).await;
    let mut last = 0;
    for _ in 0..4 {
        // Others use the counter, too: ceilings are passed again and again.
        let others = async || drop(server.run("DO BENCHMARK(400000, UUID_SHORT())").await.unwrap());
        last = drawn_until_a_crash(&server, last, 3 * BLOCK, others).await;
    }
}

/// Clients come and go within one life of the server, and the numbers go on one by one; a new life begins above all that may
/// have been given, whatever the clock says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_life_begins_above_the_ceiling() {
    let server = MariaDb::start_in(Place::Clock, &[]).await.unwrap();
    let clock = server.process.clock().unwrap();
    let url = format!("mysql+session://root@127.0.0.1:{}/locks?tls=off", server.port());
    let open = async || open::<MariaDb>(&url).await.unwrap();
    let mut last = 0;
    for hours in [1, -1, 2, -2] {
        let locks = open().await;
        for _ in 0..3 {
            let token = draw(&locks).await;
            assert_eq!(token, last + 1, "within one life");
            last = token;
        }
        // A step of the clock is no new life, also to a time before the server's start.
        clock.set_wall(hours * 3_600_000).unwrap();
        locks.close(Duration::from_secs(10)).await.unwrap();
    }
    // Back by more than the server has lived: its own counter begins lower than before.
    clock.set_wall(-1_000_000_000).unwrap();
    server.crash().await;
    let token = draw(&open().await).await;
    assert!(token > last + BLOCK && token < last + 4 * BLOCK, "token {token} after {last}");
}

/// A number above the ceiling is not given before a new ceiling is on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_number_is_above_the_ceiling() {
    let server = MariaDb::start_with(&[]).await;
    let locks = server.open("").await;
    let ceiling = async || server.count("SELECT ceiling FROM locks.onelock_session").await.unwrap();
    let before = ceiling().await;
    assert!(draw(&locks).await < before.cast_signed());
    server.run(&format!("DO BENCHMARK({}, UUID_SHORT())", BLOCK + 1000)).await.unwrap();
    let token = draw(&locks).await;
    assert!(token >= before.cast_signed() && token < ceiling().await.cast_signed());
    // Where it cannot be raised there is no grant, and nobody is left holding.
    server.run("REVOKE UPDATE ON locks.onelock_session FROM locker@'127.0.0.1'").await.unwrap();
    server.run(&format!("DO BENCHMARK({}, UUID_SHORT())", BLOCK + 1000)).await.unwrap();
    let refused = locks.mutex("n").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    server.run("GRANT UPDATE ON locks.onelock_session TO locker@'127.0.0.1'").await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(60), locks.mutex("n").unwrap().acquire()).await;
    assert!(guard.unwrap().unwrap().token().unwrap().get() > token + BLOCK);
}

/// A client's further connections write nothing, unless another server has given numbers since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_client_share_what_it_knows() {
    let server = MariaDb::start_with(&[]).await;
    let locks = server.open("").await;
    let ceiling = async || server.count("SELECT ceiling FROM locks.onelock_session").await.unwrap();
    let before = ceiling().await;
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(locks.mutex(name).unwrap().acquire().await.unwrap());
    }
    assert_eq!(ceiling().await, before, "a connection for each lock, and none has written");
    server.run("UPDATE locks.onelock_session SET life = 1, ceiling = ceiling + 1000000000").await.unwrap();
    // This one gives numbers again, above those.
    let _again = server.open("").await;
    let next = locks.mutex("d").unwrap().acquire().await.unwrap();
    let last = held.last().unwrap().token().unwrap().get();
    let token = next.token().unwrap().get();
    assert!(token > last + 1_000_000_000, "token {token} after {last}");
    assert!(token < ceiling().await.cast_signed());
}
