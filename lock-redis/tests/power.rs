//! What survives when the server's machine loses its power.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::ensure;
use onelock_conformance::power::{Powered, nothing_answered_is_lost};
use onelock_conformance::servers::Place;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;
use onelock_redis::{RedisBackend, RedisConfig};

struct Server(RedisServer);

impl Server {
    async fn start(appendfsync: &str) -> Verdict<Self> {
        let lines = vec![format!("appendfsync {appendfsync}")];
        Ok(Self(RedisServer::start(Setup { place: Place::Power, lines, ..Setup::default() }).await?))
    }
}

#[async_trait]
impl Powered for Server {
    async fn cut_power(&self) -> Verdict {
        self.0.process.cut_power().await?;
        self.0.restart().await
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        let config = RedisConfig::new("127.0.0.1", self.0.address().port());
        Ok(Arc::new(RedisBackend::connect(config).await?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_nothing_that_was_answered() -> Verdict {
    nothing_answered_is_lost(&Server::start("always").await?, 3).await
}

/// The cut is one: with a log that the system writes when it likes it takes what was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_what_was_not_synced() -> Verdict {
    let lost = nothing_answered_is_lost(&Server::start("no").await?, 1).await;
    ensure!(lost.as_ref().is_err_and(|lost| lost.to_string().contains("is lost")), "{lost:?}");
    Ok(())
}
