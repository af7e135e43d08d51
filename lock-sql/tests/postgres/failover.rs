//! The server restarted, killed and replaced while clients churn.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::churn::{Churn, Report};
use onelock_core::{Locks, Settings};
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer, standby};
use crate::server::open;

/// Far more than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn clients(url: &str, count: usize) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut settings = Settings::default();
        settings.ttl = Duration::from_secs(6);
        let backend = Arc::new(open(&format!("{url}?request_timeout=2s&connect_timeout=2s")).await);
        clients.push(Locks::builder(backend).settings(settings).build().unwrap());
    }
    clients
}

/// No two holders, tokens grow, every guard is valid or lost. Few calls fail: what may be sent twice is, on a new
/// connection.
fn judge(report: &Report, clients: usize) {
    report.check().unwrap();
    assert_eq!(report.kept + report.kept_lost, clients, "{report:?}");
    let (holds, lost) = (report.holds.len(), report.lost);
    println!("{holds} holds, {lost} lost, guards {}+{}; {:?}", report.kept, report.kept_lost, report.errors);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_restarts() {
    let mut server = PostgresServer::start(&[]).await.unwrap();
    let churn = Churn::start(clients(&server.url(), 3).await, "restart", 7).await.unwrap();
    for round in 0..4 {
        churn.goes_on(5, PATIENCE).await.unwrap();
        if round % 2 == 0 {
            server.restart_at(server.port()).await.unwrap();
        } else {
            server.restart().await.unwrap();
        }
    }
    churn.goes_on(10, PATIENCE).await.unwrap();
    judge(&churn.stop().await.unwrap(), 3);
}

/// With synchronous replication a standby that takes over knows every token and every lease that was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_churn_over_a_fail_over_to_a_synchronous_standby() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let clients = clients(&server.url(), 3).await;
    let mut standby = standby::synchronous(&server).await.unwrap();
    let churn = Churn::start(clients, "fail-over", 7).await.unwrap();
    churn.goes_on(10, PATIENCE).await.unwrap();
    server.process.kill().unwrap();
    standby.restart_at(server.port()).await.unwrap();
    standby::promote(&standby).await.unwrap();
    churn.goes_on(10, PATIENCE).await.unwrap();
    judge(&churn.stop().await.unwrap(), 3);
    let mut admin = standby.admin().await.unwrap();
    let log = admin.fetch_one("SELECT pg_walfile_name(pg_current_wal_lsn())").await.unwrap();
    assert!(log.get::<&str, _>(0).starts_with("00000002"), "it is not the standby that serves");
}
