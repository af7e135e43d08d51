//! Clocks that are stepped: the server's, and the one of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name};
use onelock_conformance::servers::Place;
use onelock_conformance::servers::clock::SteppedClock;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::servers::resp::Resp;
use onelock_conformance::steps::{Stepped, Steps, a_step_forward_ends_leases_early, survives_steps};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::clock::sleep_until;
use onelock_core::{Backend, BootClock, Clock, Locks, LossReason, Settings, Timestamp};
use onelock_redis::{RedisBackend, RedisConfig};

/// The leases of these tests.
const LEASE: Duration = Duration::from_secs(2);

async fn server() -> Verdict<RedisServer> {
    RedisServer::start(Setup { place: Place::Clock, ..Setup::default() }).await
}

async fn connect(server: &RedisServer) -> Verdict<Arc<dyn Backend>> {
    let config = RedisConfig::new("127.0.0.1", server.address().port());
    Ok(Arc::new(RedisBackend::connect(config).await?))
}

async fn client(server: &RedisServer, lease: Duration, clock: Arc<dyn Clock>) -> Verdict<Locks> {
    let backend = connect(server).await?;
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(backend).clock(clock).settings(settings).build()?)
}

struct Server(RedisServer);

#[async_trait]
impl Stepped for Server {
    fn clock(&self) -> Verdict<&SteppedClock> {
        self.0.process.clock().context("its clock")
    }

    async fn seconds(&self) -> Verdict<i64> {
        let texts = Resp::connect(self.0.address()).await?.call(&["TIME"]).await?;
        Ok(texts.first().context("the server's time")?.parse()?)
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        connect(&self.0).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_back_of_the_server_cost_nothing() -> Verdict {
    survives_steps(&Server(server().await?), LEASE, Steps::Back).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_server_never_turn_tokens_back() -> Verdict {
    survives_steps(&Server(server().await?), LEASE, Steps::Any).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_fencing_still_tells() -> Verdict {
    a_step_forward_ends_leases_early(&Server(server().await?)).await
}

/// After a step back a dead holder's lease lasts longer by the step, and not for ever: the server's keys are gone when its
/// clock gets there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_makes_a_dead_holders_lease_longer() -> Verdict {
    let server = server().await?;
    let clock = server.process.clock().context("its clock")?;
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
        // The store knew better: the entry stays until its guard is dropped, and is given back then.
        drop(guard);
        let next = tokio::time::timeout(PATIENCE, other.mutex("jump")?.acquire()).await??;
        next.release().await?;
    }
    Ok(())
}
