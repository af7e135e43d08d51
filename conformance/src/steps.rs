//! What steps of a server's clock may cost.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use onelock_core::client::Locks;
use onelock_core::{Backend, BootClock, LossReason};
use onelock_testbed::servers::clock::SteppedClock;

use crate::churn::Churn;
use crate::ctx::{PATIENCE, client_of, within};
use crate::rng::Rng;
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq};

/// Which way a clock is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Only back: no lease ends early.
    Back,
    /// Either way: a lease may end early, and what that allows is for the store's page to say.
    Any,
}

/// A server with a clock of its own.
#[async_trait]
pub trait Stepped: Send + Sync {
    /// Its clock.
    fn clock(&self) -> Verdict<&SteppedClock>;

    /// Its time, in seconds since 1970.
    async fn seconds(&self) -> Verdict<i64>;

    /// A new client of its store.
    async fn connect(&self) -> Verdict<Arc<dyn Backend>>;
}

async fn client(server: &impl Stepped, lease: Duration) -> Verdict<Locks> {
    client_of(server.connect().await?, Arc::new(BootClock), lease, lease)
}

/// Lets three clients, whose leases are `lease`, work on while the server's clock is stepped by half a lease up to ten.
/// Whatever the steps, tokens grow and every client goes on; without a step forward nobody loses a lock or has company.
///
/// # Errors
/// What was violated, or that the steps did nothing.
pub async fn survives_steps(server: &impl Stepped, lease: Duration, steps: Steps) -> Verdict {
    const CLIENTS: usize = 3;
    const LONG: Duration = Duration::from_secs(60);
    const SEED: u64 = 25;
    let clock = server.clock()?;
    clock.set_wall(-3_600_000)?;
    let ours = || Ok::<_, Stop>(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?);
    let (before, theirs, after) = (ours()?, server.seconds().await?, ours()?);
    let moved = before - 3_602..=after - 3_598;
    ensure!(moved.contains(&theirs), "the server's clock does not move: {theirs}, not in {moved:?}");
    clock.set_wall(0)?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(server, lease).await?);
    }
    let (mut rng, lease) = (Rng::new(SEED), i64::try_from(lease.as_millis())?);
    let churn = Churn::start(clients, &format!("steps-{steps:?}"), SEED).await?;
    churn.goes_on(5, LONG).await?;
    let mut ahead = 0;
    for step in 0..6 {
        let by = lease / 2 + i64::try_from(rng.below(u64::try_from(lease * 19 / 2)?))?;
        // Each way in turn, so that both are there whatever the seed.
        ahead += if steps == Steps::Any && step % 2 == 0 { by } else { -by };
        clock.set_wall(ahead)?;
        churn.goes_on(5, LONG).await.map_err(|e| e.during(format!("step {step} to {ahead} ms")))?;
    }
    if steps == Steps::Any {
        // Far enough that no lease outlives it, so that the run is never void.
        clock.set_wall(ahead + lease * 40)?;
        churn.goes_on(5, LONG).await?;
    }
    let report = churn.stop().await?;
    if let Some(violation) = crate::history::tokens(&report.holds) {
        return Err(Stop::failed(violation));
    }
    ensure!(report.deceived.is_empty(), "guards that believe too long: {:?}", report.deceived);
    let (kept, lost) = (report.kept, report.lost);
    match steps {
        Steps::Back => {
            report.check()?;
            ensure!(kept == CLIENTS && lost == 0, "{kept} locks were kept, and {lost} holds were lost");
        }
        Steps::Any => ensure!(report.kept_lost > 0, "no lease ended early: the steps did nothing"),
    }
    let (holds, overlap) = (report.holds.len(), report.has_overlap());
    println!("{holds} holds, {lost} + {} lost, overlap: {overlap}", report.kept_lost);
    Ok(())
}

/// What stores whose leases are by the server's clock say of a step forward: the server takes the lease for over and gives
/// the lock away, while the holder believes in it until its next renewal; the fencing token tells the two apart.
///
/// # Errors
/// What was violated, or that the step does nothing.
pub async fn a_step_forward_ends_leases_early(server: &impl Stepped) -> Verdict {
    let lease = Duration::from_secs(6);
    let (one, other) = (client(server, lease).await?, client(server, lease).await?);
    let guard = one.mutex("stepped")?.acquire().await?;
    ensure!(other.mutex("stepped")?.try_acquire().await?.is_none(), "it is held");
    let old = guard.token()?;
    server.clock()?.set_wall(60_000)?;
    let next = other.mutex("stepped")?.try_acquire().await?.context("the step did nothing")?;
    ensure!(next.token()? > old, "token {} after {old}", next.token()?);
    // Long before its own deadline would tell.
    let reason = within(PATIENCE, "the loss is told", guard.lost()).await?;
    ensure_eq!(reason, LossReason::NotHeld, "why it is lost");
    ensure!(!guard.is_held() && next.is_held(), "who holds at the end");
    next.release().await?;
    Ok(())
}
