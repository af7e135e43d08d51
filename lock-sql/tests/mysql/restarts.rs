//! The server is restarted while clients take locks again and again and keep some across it.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::churn::Churn;
use onelock_core::client::Locks;
use onelock_core::{BootClock, Mode, Settings};
use rustix::process::Signal;
use sqlx::{Executor as _, Row as _};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, request};

/// How long a client may take to be served again: far more than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// No two holders, tokens only grow, every kept guard is the store's holder or lost, and the same clients go on.
async fn churns_over(signal: Signal) {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut clients = Vec::new();
    // One of them sends several statements instead of blocks.
    for options in ["", "?pool=2", "?blocks=false"] {
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (Duration::from_secs(10), Duration::from_secs(10));
        let backend = Arc::new(connect(&format!("{}{options}", server.url())).await);
        clients.push(Locks::builder(backend).clock(Arc::new(BootClock)).settings(settings).build().unwrap());
    }
    let churn = Churn::start(clients.clone(), "restarted", 7).await.unwrap();
    churn.goes_on(10, PATIENCE).await.unwrap();
    for _ in 0..2 {
        server.restart_after(signal).await.unwrap();
        churn.goes_on(10, PATIENCE).await.unwrap();
    }
    let report = churn.stop().await.unwrap();
    println!(
        "{signal:?}: {} holds, {} lost, errors {:?}; guards kept {}, lost {}",
        report.holds.len(),
        report.lost,
        report.errors,
        report.kept,
        report.kept_lost
    );
    report.check().unwrap();
    assert_eq!(report.kept + report.kept_lost, clients.len());
    assert!(report.holds.len() >= 90, "{} holds", report.holds.len());
    for client in clients {
        client.close(PATIENCE).await.unwrap();
    }
    // What was held and waited for has been given back, or has expired and is on its way out.
    let left = "SELECT COUNT(*) FROM locks.onelock_line";
    let end = std::time::Instant::now() + PATIENCE;
    let client = connect(&server.url()).await;
    while server.count(left).await.unwrap() > 0 {
        assert!(std::time::Instant::now() < end, "entries stay for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_a_shutdown() {
    churns_over(Signal::TERM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_a_crash() {
    churns_over(Signal::KILL).await;
}

/// A fail-over that is there at once: the server that is reached next has not the entry of who waits, who was not removed from the
/// line. The connection breaks under a poll, or between two.
#[tokio::test]
async fn a_waiter_whose_entry_went_with_its_connection_joins_again() {
    let server = MariaDb::start(&[]).await.unwrap();
    let locks = Locks::builder(Arc::new(connect(&server.url()).await)).build().unwrap();
    let mut admin = server.admin().await.unwrap();
    for polls in [true, false] {
        let holder = connect(&server.url()).await;
        held(&holder, &request("n", Mode::Exclusive)).await;
        drop(holder);
        let lock = locks.mutex("n").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let waits = async {
            while server.count("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, waits).await.expect("it waits");
        if polls {
            // No poll is answered while the table is locked.
            admin.execute("LOCK TABLES locks.onelock_line WRITE").await.unwrap();
            let polled = async {
                let polls = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                             WHERE INFO LIKE '%onelock polls%' AND ID <> CONNECTION_ID()";
                while server.count(polls).await.unwrap() == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(LONG, polled).await.expect("it polls");
        }
        let others =
            "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND DB = 'locks'";
        for other in admin.fetch_all(others).await.unwrap() {
            let kill = format!("KILL {}", other.get::<i64, _>(0));
            admin.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(kill))).await.unwrap();
        }
        admin.execute("DELETE FROM locks.onelock_line").await.unwrap();
        admin.execute("UNLOCK TABLES").await.unwrap();
        let acquired = tokio::time::timeout(LONG, waiter).await.expect("it joins again");
        acquired.unwrap().unwrap().release().await.unwrap();
    }
}
