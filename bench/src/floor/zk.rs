//! The node of the name with the entry in it, made in one step, and both gone again in one; where the name is in use the
//! entry alone, and one watch of the line for who waits.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::try_join;
use onelock::HolderId;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;
use zookeeper_client as zk;

use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "zookeeper-client 0.11";

const BASE: &str = "/floor";

const DATA: &[u8] = b"onelock/1 x floor:1";

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
        super::lacks_waiting(need)
    }
}

#[async_trait]
impl Client for Session {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let (client, parent) = (self.0.clone(), format!("{BASE}/{}", ask.name));
        let (popular, watch, waiter) = (AtomicBool::new(false), OnceCell::new(), Arc::default());
        Ok(plain::lock(Name { client, parent, popular, watch, waiter }))
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
    /// The node of the name was there when it was to be made.
    popular: AtomicBool,
    /// Since somebody waited for the first time.
    watch: OnceCell<AbortHandle>,
    waiter: Arc<Mutex<Waiter>>,
}

/// Who waits, from before its entry is made.
#[derive(Default)]
struct Waiter {
    /// Who is known to have gone.
    gone: Vec<String>,
    ahead: Option<(Vec<String>, oneshot::Sender<()>)>,
}

fn lock(waiter: &Mutex<Waiter>) -> MutexGuard<'_, Waiter> {
    waiter.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    fn left(&mut self, entry: &str) {
        match &mut self.ahead {
            Some((ahead, _)) => ahead.retain(|other| other != entry),
            None => self.gone.push(entry.to_owned()),
        }
        self.tell();
    }

    fn tell(&mut self) {
        if let Some((_, tell)) = self.ahead.take_if(|(ahead, _)| ahead.is_empty()) {
            let _ = tell.send(());
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            watch.abort();
        }
    }
}

impl Name {
    /// Makes the node of the name and the entry in it; false where the name is in use.
    async fn join_alone(&self, id: &str) -> Result<Option<String>, Failure> {
        let entry = format!("{}/{id}0000000000", self.parent);
        let acls = zk::Acls::anyone_all();
        let mut join = self.client.new_multi_writer();
        join.add_create(&self.parent, b"", &zk::CreateMode::Container.with_acls(acls))?;
        join.add_create(&entry, b"", &zk::CreateMode::Ephemeral.with_acls(acls))?;
        join.add_set_data(&entry, DATA, Some(0))?;
        match join.commit().await {
            Ok(_) => Ok(Some(entry)),
            Err(zk::MultiWriteError::OperationFailed { source: zk::Error::NodeExists, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the entry, and waits until nobody is ahead; nothing where the node of the name is gone.
    async fn join_line(&self, id: &str) -> Result<Option<Entry>, Failure> {
        self.watch.get_or_try_init(|| self.follow()).await?;
        *lock(&self.waiter) = Waiter::default();
        let mode = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
        let path = format!("{}/{id}", self.parent);
        let (created, listed) =
            (self.client.create(&path, DATA, &mode), self.client.get_children(&self.parent));
        let ((_, sequence), (mut ahead, _)) = match try_join!(created, listed) {
            Err(zk::Error::NoNode) => return Ok(None),
            answers => answers?,
        };
        let number = |entry: &str| entry.rsplit('-').next().map(str::to_owned);
        let own = format!("{id}{sequence}");
        ahead.retain(|entry| number(entry) < number(&own));
        let alone = ahead.is_empty();
        let (tell, told) = oneshot::channel();
        {
            let mut waiter = lock(&self.waiter);
            ahead.retain(|entry| !waiter.gone.contains(entry));
            waiter.ahead = Some((ahead, tell));
            waiter.tell();
        }
        told.await?;
        Ok(Some(Entry { path: format!("{}/{own}", self.parent), alone }))
    }

    /// Follows all that come and go.
    async fn follow(&self) -> Result<AbortHandle, Failure> {
        let mut watch = self.client.watch(&self.parent, zk::AddWatchMode::PersistentRecursive).await?;
        let (waiter, parent) = (Arc::clone(&self.waiter), format!("{}/", self.parent));
        let task = tokio::spawn(async move {
            loop {
                let event = watch.changed().await;
                if event.event_type == zk::EventType::Session {
                    // Whoever waits now waits for ever, and the workload's patience ends.
                    return;
                }
                if event.event_type == zk::EventType::NodeDeleted
                    && let Some(entry) = event.path.strip_prefix(&parent)
                {
                    lock(&waiter).left(entry);
                }
            }
        });
        Ok(task.abort_handle())
    }
}

/// What is held.
struct Entry {
    path: String,
    /// Nobody else was seen in the line.
    alone: bool,
}

impl Plain for Name {
    type Kept = Entry;

    async fn take(&self, wait: bool) -> Result<Option<Entry>, Failure> {
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
        let id = format!("_c_{id}-lock-");
        loop {
            if !self.popular.load(Ordering::Relaxed) {
                if let Some(path) = self.join_alone(&id).await? {
                    return Ok(Some(Entry { path, alone: true }));
                }
                if !wait {
                    return Ok(None);
                }
                self.popular.store(true, Ordering::Relaxed);
            }
            if let Some(entry) = self.join_line(&id).await? {
                return Ok(Some(entry));
            }
            self.popular.store(false, Ordering::Relaxed);
        }
    }

    async fn give_back(&self, entry: Entry) -> Result<(), Failure> {
        if entry.alone {
            let mut leave = self.client.new_multi_writer();
            leave.add_delete(&entry.path, None)?;
            leave.add_delete(&self.parent, None)?;
            match leave.commit().await {
                Ok(_) => {
                    self.popular.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                // Somebody has joined.
                Err(zk::MultiWriteError::OperationFailed { index: 1, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.client.delete(&entry.path, None).await?)
    }
}
