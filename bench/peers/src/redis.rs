//! rslock: a key with a time to live, asked for again and again. It renews nothing, and its tries come at random.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_bench::networked::Connector;
use onelock_bench::plain::{self, Plain};
use onelock_bench::subject::{LockSpec, Client, Failure, Lock, Need};
use rslock::{LockGuard, LockManager};

pub(crate) struct Rslock;

struct Manager {
    manager: LockManager,
    lease: Duration,
}

#[async_trait]
impl Connector for Rslock {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        Ok(Arc::new(Manager { manager: LockManager::new(vec![format!("redis://{server}")]), lease }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Renewal => Some("it renews nothing".to_owned()),
            Need::Try => Some("each of its attempts is three, with pauses between them".to_owned()),
            need => super::lacks(need),
        }
    }
}

#[async_trait]
impl Client for Manager {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { manager: self.manager.clone(), name: ask.name.to_owned(), lease: self.lease }))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Name {
    manager: LockManager,
    name: String,
    lease: Duration,
}

impl Plain for Name {
    type Kept = LockGuard;

    async fn take(&self, _: bool) -> Result<Option<LockGuard>, Failure> {
        Ok(Some(self.manager.acquire(self.name.as_str(), self.lease).await?))
    }

    async fn give_back(&self, guard: LockGuard) -> Result<(), Failure> {
        // It does not tell whether that succeeded.
        guard.release().await;
        Ok(())
    }
}
