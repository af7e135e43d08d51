//! The transaction that joins a line, the deletion of its key, and one watch of the line for who waits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, ConnectOptions, EventType, GetOptions, KvClient, PutOptions, Txn, TxnOp,
    TxnOpResponse, WatchOptions, WatchResponse,
};
use onelock::HolderId;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;

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
        super::lacks_waiting(need)
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let (line, end) = (format!("onelock-floor/{}/", ask.name), format!("onelock-floor/{}0", ask.name));
        let (client, kv) = (self.client.clone(), self.client.kv_client());
        let (watch, members) = (OnceCell::new(), Arc::default());
        Ok(plain::lock(Name { client, kv, lease: self.lease, line, end, watch, members }))
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
    client: etcd_client::Client,
    kv: KvClient,
    lease: i64,
    line: String,
    end: String,
    /// Since somebody waited for the first time.
    watch: OnceCell<AbortHandle>,
    members: Arc<Mutex<Members>>,
}

/// The line as the watch shows it, and who waits to be its first.
#[derive(Default)]
struct Members {
    keys: BTreeMap<i64, Vec<u8>>,
    waiter: Option<(String, oneshot::Sender<()>)>,
}

impl Members {
    fn learn(&mut self, response: &WatchResponse) {
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            match event.event_type() {
                EventType::Put => {
                    self.keys.insert(kv.create_revision(), kv.key().to_vec());
                }
                EventType::Delete => self.keys.retain(|_, key| key != kv.key()),
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        let first = self.keys.first_key_value().map(|(_, key)| &key[..]);
        if let Some((_, tell)) = self.waiter.take_if(|(key, _)| first == Some(key.as_bytes())) {
            let _ = tell.send(());
        }
    }
}

fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            watch.abort();
        }
    }
}

impl Name {
    /// Reads the line, and follows it from there.
    async fn follow(&self) -> Result<AbortHandle, Failure> {
        let all = GetOptions::new().with_range(&self.end[..]).with_keys_only();
        let read = self.kv.clone().get(&self.line[..], Some(all)).await?;
        let next = read.header().ok_or("an answer without a header")?.revision() + 1;
        let keys = read.kvs().iter().map(|kv| (kv.create_revision(), kv.key().to_vec()));
        lock(&self.members).keys = keys.collect();
        let options = WatchOptions::new().with_range(&self.end[..]).with_start_revision(next);
        let mut stream = self.client.watch_client().watch(&self.line[..], Some(options)).await?;
        let members = Arc::clone(&self.members);
        let task = tokio::spawn(async move {
            // Whoever waits when it breaks waits for ever, and the workload's patience ends.
            while let Ok(Some(response)) = stream.message().await {
                lock(&members).learn(&response);
            }
        });
        Ok(task.abort_handle())
    }

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
        let joined = answer.op_responses().into_iter().next();
        let holds = match joined {
            Some(TxnOpResponse::Txn(join)) => join.succeeded(),
            _ => answer.succeeded(),
        };
        if holds || !wait {
            return Ok(holds.then_some(key));
        }
        self.watch.get_or_try_init(|| self.follow()).await?;
        let (tell, told) = oneshot::channel();
        {
            let mut members = lock(&self.members);
            members.waiter = Some((key.clone(), tell));
            members.tell();
        }
        told.await?;
        Ok(Some(key))
    }

    async fn give_back(&self, key: String) -> Result<(), Failure> {
        match self.kv.clone().delete(key, None).await?.deleted() {
            1 => Ok(()),
            _ => Err("the lock was not held any more".into()),
        }
    }
}
