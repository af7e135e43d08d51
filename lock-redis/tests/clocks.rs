//! Clocks that are stepped: the server's, and the one of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_conformance::ctx::{PATIENCE, exclusive, held, leased, name};
use lock_conformance::servers::clock::{SteppedClock, Steps, churn_over_steps};
use lock_conformance::servers::redis::{RedisServer, Setup};
use lock_conformance::servers::resp::Resp;
use lock_conformance::verdict::{Context as _, Verdict};
use lock_conformance::{ensure, ensure_eq};
use lock_core::clock::sleep_until;
use lock_core::{Backend, BootClock, Clock, Locks, LossReason, Settings, Timestamp};
use lock_redis::{RedisBackend, RedisConfig};

/// The leases of these tests.
const LEASE: Duration = Duration::from_secs(2);

async fn server() -> Verdict<RedisServer> {
    RedisServer::start(Setup { clock: true, ..Setup::default() }).await
}

async fn client(server: &RedisServer, lease: Duration, clock: Arc<dyn Clock>) -> Verdict<Locks> {
    let backend: Arc<dyn Backend> =
        Arc::new(RedisBackend::connect(RedisConfig::new("127.0.0.1", server.address().port())).await?);
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(backend).clock(clock).settings(settings).build()?)
}

/// How many seconds the server's clock is ahead of ours.
async fn ahead(server: &RedisServer) -> Verdict<i64> {
    let texts = Resp::connect(server.address()).await?.call(&["TIME"]).await?.texts();
    let theirs: i64 = texts.first().context("the server's time")?.parse()?;
    Ok(theirs - i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?)
}

async fn churns(steps: Steps) -> Verdict {
    let server = server().await?;
    let clock = server.clock().context("its clock")?;
    clock.set_wall(-3_600_000)?;
    ensure!((-3_602..=-3_598).contains(&ahead(&server).await?), "the server's clock does not move");
    clock.set_wall(0)?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(&server, LEASE, Arc::new(BootClock)).await?);
    }
    let report = churn_over_steps(clients, clock, LEASE, steps, 25).await?;
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
    let server = server().await?;
    let clock: &SteppedClock = server.clock().context("its clock")?;
    let lease = Duration::from_secs(6);
    let (one, other) = (
        client(&server, lease, Arc::new(BootClock)).await?,
        client(&server, lease, Arc::new(BootClock)).await?,
    );
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

/// After a step back a dead holder's lease lasts longer by the step, and not for ever: the server's keys are gone when its
/// clock gets there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_makes_a_dead_holders_lease_longer() -> Verdict {
    let server = server().await?;
    let clock = server.clock().context("its clock")?;
    let other = client(&server, LEASE, Arc::new(BootClock)).await?;
    // Nobody renews it or gives it back.
    let dead = leased(exclusive(&name("dead")?)?, Duration::from_secs(1));
    let old = held(other.backend(), &dead).await?.token;
    let over = BootClock.now() + dead.lease;
    clock.set_wall(-3_600_000)?;
    sleep_until(&(Arc::new(BootClock) as Arc<dyn Clock>), over).await;
    ensure!(other.mutex("dead")?.try_acquire().await?.is_none(), "the step did nothing");
    clock.set_wall(0)?;
    let next = tokio::time::timeout(PATIENCE, other.mutex("dead")?.acquire()).await??;
    ensure!(next.token()? > old, "token {} after {old}", next.token()?);
    next.release().await?;
    Ok(())
}

/// Boot time, some way ahead.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        BootClock.now() + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A client whose clock jumps over its deadlines ends its guards at once, before the store does: too early, never too
/// late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_the_clients_clock_ends_its_guards_early() -> Verdict {
    let server = server().await?;
    let clock = Arc::new(Ahead::default());
    let lease = Duration::from_secs(60);
    let one = client(&server, lease, clock.clone()).await?;
    let other = client(&server, lease, Arc::new(BootClock)).await?;
    for step in [lease, lease * 10] {
        let guard = one.mutex("jump")?.acquire().await?;
        // Half of what is left: nothing happens.
        let half = u64::try_from(guard.remaining().as_millis())? / 2;
        clock.0.fetch_add(half, Ordering::SeqCst);
        ensure!(guard.is_held(), "half a lease has ended it");
        clock.0.fetch_add(u64::try_from(step.as_millis())?, Ordering::SeqCst);
        ensure!(
            !guard.is_held() && guard.token().is_err(),
            "it believes in a lease that is over by its clock"
        );
        let reason = tokio::time::timeout(PATIENCE, guard.lost()).await?;
        ensure_eq!(reason, LossReason::Expired, "why it is lost");
        // The store knew better, and the client has given back what it no longer believes in.
        let next = tokio::time::timeout(PATIENCE, other.mutex("jump")?.acquire()).await??;
        next.release().await?;
    }
    Ok(())
}
