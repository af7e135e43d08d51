//! Numbers never go back, although nothing waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Executor as _, Row as _};

use crate::postgres::open;
use crate::postgres_harness::start;
use crate::postgres_server::Admin as _;

/// The server is killed while clients draw numbers: the sequence goes back, the tokens do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_crashes() {
    // As far behind as the log may be: what a crash forgets is to be seen.
    let server = start(&["wal_writer_delay=10s"]).await.unwrap();
    let (mut last, mut forgotten) = (0, 0);
    for round in 0..6 {
        let highest = Arc::new(AtomicI64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4 {
            let locks = open(server.port(), "").await.unwrap();
            let (highest, name) = (Arc::clone(&highest), format!("name-{}", task % 2));
            tasks.spawn(async move {
                let lock = locks.mutex(&name).unwrap();
                // Until the server is gone.
                while let Ok(Some(guard)) = lock.acquire_timeout(Duration::from_secs(20)).await {
                    let Ok(token) = guard.token() else { break };
                    assert!(token.get() > last, "round {round}: token {token}, and {last} before the crash");
                    highest.fetch_max(token.get(), Ordering::SeqCst);
                    if guard.release().await.is_err() {
                        break;
                    }
                }
            });
        }
        let (end, before) = (Instant::now() + Duration::from_secs(60), highest.load(Ordering::SeqCst));
        while highest.load(Ordering::SeqCst) < before.max(last) + 100 {
            assert!(Instant::now() < end, "no numbers are drawn");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.restart().await.unwrap();
        tasks.shutdown().await;
        last = highest.load(Ordering::SeqCst);
        let sequence = "SELECT last_value FROM onelock_session.number";
        let now: i64 = server.admin().await.unwrap().fetch_one(sequence).await.unwrap().get(0);
        forgotten += i64::from(now < last);
    }
    assert!(forgotten > 0, "no crash has set the sequence back: the run proves nothing");
}

/// Clients come and go without a gap in the numbers; a crash lifts them once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_lifts_once() {
    let server = start(&[]).await.unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let locks = open(server.port(), "").await.unwrap();
        for _ in 0..5 {
            let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
            let token = guard.token().unwrap().get();
            assert_eq!(token, last + 1);
            last = token;
            guard.release().await.unwrap();
        }

        locks.close(Duration::from_secs(10)).await.unwrap();
    }
    server.admin().await.unwrap().execute("CHECKPOINT").await.unwrap();
    server.restart().await.unwrap();
    let locks = open(server.port(), "").await.unwrap();
    let token = locks.mutex("n").unwrap().acquire().await.unwrap().token().unwrap().get();
    assert!(token > last + (1 << 30) - 100 && token < last + (1 << 31), "token {token} after {last}");
}
