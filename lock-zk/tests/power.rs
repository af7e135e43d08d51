//! What survives when the server's machine loses its power.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::harness::open_by;
use onelock_conformance::power::{Powered, nothing_answered_is_lost};
use onelock_conformance::servers::Place;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;

struct Server(ZkServer);

#[async_trait]
impl Powered for Server {
    async fn cut_power(&self) -> Verdict {
        self.0.process.cut_power().await?;
        self.0.restart().await
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&onelock_zk::DRIVER, &format!("zk://{}/power?tick=200ms", self.0.address())).await?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_nothing_that_was_answered() -> Verdict {
    let setup = Setup { place: Place::Power, ..Setup::default() };
    let server = ZkServer::start(setup).await?;
    // ZooKeeper does not sync its first snapshot, and does not start on a log without one. What is there at a start counts as
    // synced.
    server.restart().await?;
    nothing_answered_is_lost(&Server(server), 3).await
}
