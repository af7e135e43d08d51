//! The server's clock is stepped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onelock_conformance::servers::Place;
use onelock_conformance::servers::clock::SteppedClock;
use onelock_conformance::steps::{Stepped, Steps, a_step_forward_ends_leases_early, survives_steps};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::{Backend, Release, Standing};
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

const LEASE: Duration = Duration::from_secs(3);

struct Server(PostgresServer);

async fn server() -> Verdict<Server> {
    Ok(Server(PostgresServer::start_in(Place::Clock, &[]).await?))
}

#[async_trait]
impl Stepped for Server {
    fn clock(&self) -> Verdict<&SteppedClock> {
        self.0.process.clock().context("its clock")
    }

    async fn seconds(&self) -> Verdict<i64> {
        let sql = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        Ok(self.0.admin().await?.fetch_one(sql).await?.try_get(0)?)
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(Arc::new(open(&self.0.url()).await))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_back_of_the_server_cost_nothing() -> Verdict {
    survives_steps(&server().await?, LEASE, Steps::Back).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_server_never_turn_tokens_back() -> Verdict {
    survives_steps(&server().await?, LEASE, Steps::Any).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_fencing_still_tells() -> Verdict {
    a_step_forward_ends_leases_early(&server().await?).await
}

/// What nobody asks for any more goes, also after a time in which the clock was far ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_tidied_after_a_step_back() -> Verdict {
    let server = server().await?;
    let store = open(&server.0.url()).await;
    let cycles = async || {
        for _ in 0..70 {
            let one = request("n");
            assert!(matches!(store.acquire(&one).await.unwrap(), Standing::Held(_)));
            assert_eq!(store.release(&one.ticket()).await.unwrap(), Release::Released);
        }
    };
    server.clock()?.set_wall(90 * 24 * 3_600_000)?;
    cycles().await;
    server.clock()?.set_wall(0)?;
    let mut dead = request("dead");
    dead.lease = Duration::from_millis(100);
    assert!(matches!(store.acquire(&dead).await.unwrap(), Standing::Held(_)));
    let end = Instant::now() + Duration::from_secs(60);
    while server.0.say("SELECT count(*) FROM onelock.line WHERE name = 'dead'").await? != "0" {
        assert!(Instant::now() < end, "it stays");
        cycles().await;
    }
    Ok(())
}
