//! What survives when the server's machine loses its power.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::power::{Powered, nothing_answered_is_lost};
use onelock_conformance::servers::Place;
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;

use crate::postgres_server::PostgresServer;
use crate::server::open;

struct Store(PostgresServer);

#[async_trait]
impl Powered for Store {
    async fn cut_power(&self) -> Verdict {
        self.0.process.cut_power().await?;
        self.0.restart().await
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(Arc::new(open(&self.0.url()).await))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_nothing_that_was_answered() {
    let server = PostgresServer::start_in(Place::Power, &[]).await.unwrap();
    nothing_answered_is_lost(&Store(server), 3).await.unwrap();
}

/// The cut is one: without `fsync` it takes what was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_what_was_not_synced() {
    let server = PostgresServer::start_in(Place::Power, &["fsync=off"]).await.unwrap();
    let lost = nothing_answered_is_lost(&Store(server), 1).await.unwrap_err();
    assert!(lost.to_string().contains("lost"), "{lost}");
}
