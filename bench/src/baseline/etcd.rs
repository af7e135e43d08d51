//! A key that is put where there is none, by one transaction, and deleted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, ConnectOptions, GetOptions, KvClient, LeaseClient, PutOptions, Txn, TxnOp,
};

use super::{Pair, client};
use crate::networked::Connector;
use crate::subject::{Client, Failure};

pub(super) const DRIVER: &str = "etcd-client 0.21";

/// A run ends before this lease does: nothing keeps it alive.
const LEASE: i64 = 3_600;

pub(super) struct EtcdPair;

#[derive(Clone)]
struct Connection {
    kv: KvClient,
    leases: LeaseClient,
    lease: i64,
}

#[async_trait]
impl Connector for EtcdPair {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = ConnectOptions::new().with_require_leader(true);
        let driver = etcd_client::Client::connect([server.to_string()], Some(options)).await?;
        let lease = driver.lease_client().grant(LEASE, None).await?.id();
        Ok(client(Connection { kv: driver.kv_client(), leases: driver.lease_client(), lease }))
    }
}

impl Pair for Connection {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        let key = key(name);
        let free = Compare::create_revision(&key[..], CompareOp::Equal, 0);
        let put = TxnOp::put(&key[..], "", Some(PutOptions::new().with_lease(self.lease)));
        let answer = self.kv.clone().txn(Txn::new().when([free]).and_then([put])).await?;
        Ok(answer.succeeded().then_some(()))
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        Ok(self.kv.clone().delete(key(name), None).await?.deleted() == 1)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        // Any answer that needs no agreement of members.
        let read = GetOptions::new().with_serializable().with_count_only();
        self.kv.clone().get("baseline", Some(read)).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.leases.clone().revoke(self.lease).await?;
        Ok(())
    }
}

fn key(name: &str) -> String {
    format!("baseline/{name}")
}
