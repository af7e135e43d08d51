//! The lock recipe of zookeeper-client. It gives back in the background and does not tell when that is done; here its node
//! is deleted by hand instead, so that the answer is waited for as everywhere else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_bench::networked::Connector;
use onelock_bench::plain::{self, Plain};
use onelock_bench::subject::{LockSpec, Client, Failure, Lock, Need};
use zookeeper_client::{self as zk, Acls, CreateMode, LockOptions, LockPrefix};

pub(crate) struct Recipe;

struct Session(zk::Client);

#[async_trait]
impl Connector for Recipe {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connector = zk::Client::connector().with_session_timeout(lease);
        Ok(Arc::new(Session(connector.connect(&server.to_string()).await?)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Try => Some("it has no try".to_owned()),
            need => super::lacks(need),
        }
    }
}

#[async_trait]
impl Client for Session {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { client: self.0.clone(), folder: format!("/peers/{}", ask.name) }))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Name {
    client: zk::Client,
    folder: String,
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, _: bool) -> Result<Option<String>, Failure> {
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
        let prefix = LockPrefix::new_curator(&self.folder, "lock-")?;
        let locked = self.client.lock(prefix, b"", options).await?;
        let path = locked.lock_path().to_owned();
        // It would delete the node a second time.
        std::mem::forget(locked);
        Ok(Some(path))
    }

    async fn give_back(&self, path: String) -> Result<(), Failure> {
        Ok(self.client.delete(&path, None).await?)
    }
}
