//! The node of the name with the entry in it, made in one step, and both gone again in one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use zookeeper_client as zk;

use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "zookeeper-client 0.11";

const BASE: &str = "/floor";

pub(super) struct Floor;

struct Session(zk::Client);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let connector = zk::Client::connector().with_session_timeout(lease);
        let client = connector.connect(&server.to_string()).await?;
        client.mkdir(BASE, &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())).await?;
        Ok(Arc::new(Session(client)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks(need)
    }
}

#[async_trait]
impl Client for Session {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { client: self.0.clone(), parent: format!("{BASE}/{}", ask.name) }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.check_stat(BASE).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        // A session ends with its last handle.
        Ok(())
    }
}

struct Name {
    client: zk::Client,
    parent: String,
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, wait: bool) -> Result<Option<String>, Failure> {
        if !wait {
            // Who may not wait looks first.
            match self.client.list_children(&self.parent).await {
                Err(zk::Error::NoNode) => {}
                Ok(children) if children.is_empty() => {}
                Ok(_) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let id = HolderId::random()?.to_hex();
        let id = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
        let entry = format!("{}/_c_{id}-lock-0000000000", self.parent);
        let acls = zk::Acls::anyone_all();
        let mut join = self.client.new_multi_writer();
        join.add_create(&self.parent, b"", &zk::CreateMode::Container.with_acls(acls))?;
        join.add_create(&entry, b"", &zk::CreateMode::Ephemeral.with_acls(acls))?;
        join.add_set_data(&entry, b"onelock/1 x floor:1", Some(0))?;
        join.commit().await?;
        Ok(Some(entry))
    }

    async fn give_back(&self, entry: String) -> Result<(), Failure> {
        let mut leave = self.client.new_multi_writer();
        leave.add_delete(&entry, None)?;
        leave.add_delete(&self.parent, None)?;
        leave.commit().await?;
        Ok(())
    }
}
