//! What becomes of the sequence of the numbers.

use std::time::Duration;

use onelock_core::ErrorKind;
use sqlx::{Executor as _, Row as _};

use crate::numbers::{draw, drawn_until_a_crash};
use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::Server as _;

/// The server is killed while clients draw numbers: the sequence goes back, the tokens do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_crashes() {
    // As far behind as the log may be: what a crash forgets is to be seen.
    let server = PostgresServer::start_with(&["wal_writer_delay=10s"]).await;
    let (mut last, mut forgotten, mut crashes) = (0, 0, 0);
    // Whether a crash forgets anything is up to when the log was last written: about one in four does.
    while crashes < 6 || (forgotten == 0 && crashes < 80) {
        crashes += 1;
        // So many that some are in the log's last page, which nobody asks for, after the first write of all of it.
        let pause = async || tokio::time::sleep(Duration::from_millis(2)).await;
        last = drawn_until_a_crash(&server, last, 1000, pause).await;
        let sequence = "SELECT last_value FROM onelock_session.number";
        let now: i64 = server.admin().await.unwrap().fetch_one(sequence).await.unwrap().get(0);
        forgotten += i64::from(now < last);
    }
    assert!(forgotten > 0, "no crash has set the sequence back: the run proves nothing");
}

/// Clients come and go without a gap in the numbers; a crash lifts them once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_lifts_once() {
    let server = PostgresServer::start_with(&[]).await;
    let mut last = 0;
    for _ in 0..3 {
        let locks = server.open("").await;
        for _ in 0..5 {
            let token = draw(&locks).await;
            assert_eq!(token, last + 1);
            last = token;
        }
        locks.close(Duration::from_secs(10)).await.unwrap();
    }
    server.admin().await.unwrap().execute("CHECKPOINT").await.unwrap();
    server.crash().await;
    let token = draw(&server.open("").await).await;
    assert!(token > last + (1 << 30) - 100 && token < last + (1 << 31), "token {token} after {last}");
}

/// A dump ends with the values of the sequences: by then clients of the next token epoch may have begun it. They are told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_the_end_of_a_restore_sets_back_is_noticed() {
    let server = PostgresServer::start_with(&[]).await;
    let before = draw(&server.open("").await).await;
    let locks = server.open("&token_epoch=1").await;
    let last = draw(&locks).await;
    server.say(&format!("SELECT pg_catalog.setval('onelock_session.number', {before}, true)")).await.unwrap();
    for locks in [&locks, &server.open("&token_epoch=1").await] {
        let error = locks.mutex("n").unwrap().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("raise `token_epoch`"), "{error}");
    }
    assert!(draw(&server.open("&token_epoch=2").await).await > last);
}
