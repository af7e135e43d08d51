//! An ephemeral node that is made and deleted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client as zk;

use super::{Pair, client};
use crate::networked::Connector;
use crate::subject::{Client, Failure};

pub(super) const DRIVER: &str = "zookeeper-client 0.11";

const BASE: &str = "/baseline";

pub(super) struct Nodes;

#[derive(Clone)]
struct Session(zk::Client);

#[async_trait]
impl Connector for Nodes {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connector = zk::Client::connector().with_session_timeout(lease);
        let driver = connector.connect(&server.to_string()).await?;
        driver.mkdir(BASE, &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())).await?;
        Ok(client(Session(driver)))
    }
}

impl Pair for Session {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        let mode = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        match self.0.create(&format!("{BASE}/{name}"), b"", &mode).await {
            Ok(_) => Ok(Some(())),
            Err(zk::Error::NodeExists) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        match self.0.delete(&format!("{BASE}/{name}"), None).await {
            Ok(()) => Ok(true),
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.check_stat(BASE).await?;
        Ok(true)
    }
}
