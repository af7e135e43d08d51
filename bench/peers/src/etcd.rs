//! The lock service of the server, by etcd-client. A lock is its lease's: two calls with one lease both succeed, so each lock
//! that is prepared here has a lease of its own. Many waiters that are killed at once can leave a server of 3.4 waking
//! nobody any more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::LockOptions;
use onelock_bench::networked::Connector;
use onelock_bench::plain::{self, Plain};
use onelock_bench::subject::{LockSpec, Client, Failure, Lock, Need};
use tokio::sync::OnceCell;

/// A run ends before this lease does: nothing keeps it alive.
const LEASE: i64 = 3_600;

pub(crate) struct Service;

struct Connection(etcd_client::Client);

#[async_trait]
impl Connector for Service {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        Ok(Arc::new(Connection(etcd_client::Client::connect([server.to_string()], None).await?)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Renewal | Need::Crash => Some("to keep leases alive is left to its caller".to_owned()),
            Need::Try => Some("it has no try".to_owned()),
            need => super::lacks(need),
        }
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let name = format!("peers/{}", ask.name);
        Ok(plain::lock(Name { client: self.0.clone(), name, lease: OnceCell::new() }))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Name {
    client: etcd_client::Client,
    name: String,
    lease: OnceCell<i64>,
}

impl Plain for Name {
    type Kept = Vec<u8>;

    async fn take(&self, _: bool) -> Result<Option<Vec<u8>>, Failure> {
        let grant = || async {
            let granted = self.client.lease_client().grant(LEASE, None).await?;
            Ok::<_, etcd_client::Error>(granted.id())
        };
        let lease = *self.lease.get_or_try_init(grant).await?;
        let options = LockOptions::new().with_lease(lease);
        let locked = self.client.lock_client().lock(self.name.as_str(), Some(options)).await?;
        Ok(Some(locked.key().to_vec()))
    }

    async fn give_back(&self, key: Vec<u8>) -> Result<(), Failure> {
        self.client.lock_client().unlock(key).await?;
        Ok(())
    }
}
