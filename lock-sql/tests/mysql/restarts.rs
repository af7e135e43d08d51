//! The server is restarted while clients take locks again and again and keep some across it.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::churn::Churn;
use onelock_core::client::Locks;
use onelock_core::{BootClock, Settings};
use rustix::process::Signal;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::connect;

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
