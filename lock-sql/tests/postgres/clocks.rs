//! The server's clock is stepped.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_conformance::ctx::PATIENCE;
use lock_conformance::servers::clock::{Steps, churn_over_steps};
use lock_conformance::verdict::{Context as _, Verdict};
use lock_conformance::{ensure, ensure_eq};
use lock_core::{Locks, LossReason, Settings};
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;

async fn client(server: &PostgresServer, lease: Duration) -> Verdict<Locks> {
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(Arc::new(open(&server.url()).await)).settings(settings).build()?)
}

/// How many seconds the server's clock is ahead of ours.
async fn ahead(server: &PostgresServer) -> Verdict<i64> {
    let sql = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let theirs: i64 = server.admin().await?.fetch_one(sql).await?.try_get(0)?;
    Ok(theirs - i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?)
}

async fn churns(steps: Steps) -> Verdict {
    let (server, clock) = PostgresServer::start_with_clock(&[]).await?;
    clock.set_wall(-3_600_000)?;
    ensure!((-3_602..=-3_598).contains(&ahead(&server).await?), "the server's clock does not move");
    clock.set_wall(0)?;
    let lease = Duration::from_secs(3);
    let clients = vec![client(&server, lease).await?, client(&server, lease).await?];
    let report = churn_over_steps(clients, &clock, lease, steps, 25).await?;
    println!(
        "{} holds, {} + {} lost, overlap: {}",
        report.holds.len(),
        report.lost,
        report.kept_lost,
        report.has_overlap()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_back_of_the_server_cost_nothing() -> Verdict {
    churns(Steps::Back).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_server_never_turn_tokens_back() -> Verdict {
    churns(Steps::Any).await
}

/// What the store's page says of a step forward: the server takes the lease for over and gives the lock away, while the
/// holder believes in it until its next renewal; the fencing token tells the two apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_fencing_still_tells() -> Verdict {
    let (server, clock) = PostgresServer::start_with_clock(&[]).await?;
    let lease = Duration::from_secs(6);
    let (one, other) = (client(&server, lease).await?, client(&server, lease).await?);
    let guard = one.mutex("stepped")?.acquire().await?;
    ensure!(other.mutex("stepped")?.try_acquire().await?.is_none(), "it is held");
    let old = guard.token()?;
    clock.set_wall(60_000)?;
    let next = other.mutex("stepped")?.try_acquire().await?.context("the step did nothing")?;
    ensure!(next.token()? > old, "token {} after {old}", next.token()?);
    // Long before its own deadline would tell.
    let reason = tokio::time::timeout(PATIENCE, guard.lost()).await?;
    ensure_eq!(reason, LossReason::NotHeld, "why it is lost");
    ensure!(!guard.is_held() && next.is_held(), "who holds at the end");
    next.release().await?;
    Ok(())
}
