//! The server's clock is stepped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::servers::Place;
use onelock_conformance::servers::clock::SteppedClock;
use onelock_conformance::steps::{Stepped, Steps, a_step_forward_ends_leases_early, survives_steps};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::Backend;
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;

const LEASE: Duration = Duration::from_secs(3);

struct Server(PostgresServer);

async fn server() -> Verdict<Server> {
    Ok(Server(PostgresServer::start_in(Place::Clock, &[]).await?))
}

#[async_trait]
impl Stepped for Server {
    fn clock(&self) -> Verdict<&SteppedClock> {
        self.0.clock().context("its clock")
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
