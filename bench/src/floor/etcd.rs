//! The transaction that joins a free line, and the deletion of its key.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, ConnectOptions, GetOptions, KvClient, PutOptions, Txn, TxnOp};
use onelock::HolderId;

use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "etcd-client 0.21";

/// A run ends before this lease does: nothing keeps it alive.
const LEASE: i64 = 3_600;

pub(super) struct Floor;

struct Connection {
    client: etcd_client::Client,
    lease: i64,
}

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = ConnectOptions::new().with_require_leader(true);
        let client = etcd_client::Client::connect([server.to_string()], Some(options)).await?;
        let lease = client.lease_client().grant(LEASE, None).await?.id();
        Ok(Arc::new(Connection { client, lease }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks(need)
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let (line, end) = (format!("onelock-floor/{}/", ask.name), format!("onelock-floor/{}0", ask.name));
        Ok(plain::lock(Name { kv: self.client.kv_client(), lease: self.lease, line, end }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        // Any answer that needs no agreement of members.
        let read = GetOptions::new().with_serializable().with_count_only();
        self.client.kv_client().get("onelock-floor", Some(read)).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.client.lease_client().revoke(self.lease).await?;
        Ok(())
    }
}

struct Name {
    kv: KvClient,
    lease: i64,
    line: String,
    end: String,
}

impl Name {
    fn empty(&self) -> Compare {
        Compare::create_revision(&self.line[..], CompareOp::Equal, 0).with_range(&self.end[..])
    }

    fn put(&self, key: &str) -> TxnOp {
        TxnOp::put(key, "floor:1", Some(PutOptions::new().with_lease(self.lease)))
    }
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, wait: bool) -> Result<Option<String>, Failure> {
        let key = format!("{}{}", self.line, HolderId::random()?.to_hex());
        let absent = Compare::create_revision(&key[..], CompareOp::Equal, 0);
        let look = || TxnOp::get(&key[..], Some(GetOptions::new().with_keys_only()));
        let hold = [self.put(&key), look()];
        let txn = if wait {
            let join = Txn::new().when([self.empty()]).and_then(hold).or_else([self.put(&key)]);
            let needs_write = TxnOp::delete(format!("{key}/"), None);
            Txn::new().when([absent]).and_then([TxnOp::txn(join), needs_write])
        } else {
            Txn::new().when([self.empty(), absent]).and_then(hold).or_else([look()])
        };
        let answer = self.kv.clone().txn(txn).await?;
        Ok(answer.succeeded().then_some(key))
    }

    async fn give_back(&self, key: String) -> Result<(), Failure> {
        match self.kv.clone().delete(key, None).await?.deleted() {
            1 => Ok(()),
            _ => Err("the lock was not held any more".into()),
        }
    }
}
