//! What survives when the server's machine loses its power.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::harness::open_by;
use onelock_conformance::power::{Powered, nothing_answered_is_lost};
use onelock_conformance::servers::Place;
use onelock_conformance::servers::etcd::Member;
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;
use onelock_etcd::DRIVER;

struct Server(Member);

#[async_trait]
impl Powered for Server {
    async fn cut_power(&self) -> Verdict {
        self.0.process.cut_power().await?;
        self.0.restart().await
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&DRIVER, &self.0.url()).await?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_takes_nothing_that_was_answered() -> Verdict {
    nothing_answered_is_lost(&Server(Member::with(Place::Power, None, &[]).await?), 3).await
}
