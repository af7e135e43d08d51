//! The server's clock is stepped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::servers::Place;
use onelock_conformance::servers::clock::SteppedClock;
use onelock_conformance::steps::{Stepped, Steps, a_step_forward_ends_leases_early, survives_steps};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::Backend;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::connect;

const LEASE: Duration = Duration::from_secs(3);

struct Server(MariaDb);

async fn server() -> Verdict<Server> {
    Ok(Server(MariaDb::start_in(Place::Clock, &[]).await?))
}

#[async_trait]
impl Stepped for Server {
    fn clock(&self) -> Verdict<&SteppedClock> {
        self.0.process.clock().context("its clock")
    }

    async fn seconds(&self) -> Verdict<i64> {
        let sql = "SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())";
        Ok(i64::try_from(self.0.count(sql).await?)?)
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(Arc::new(connect(&self.0.url()).await))
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
