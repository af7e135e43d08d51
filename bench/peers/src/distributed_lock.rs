//! The family distributed-lock on three servers.
//!
//! - Redis: `acquire` on a lock that is held fails at once, whatever the timeout: it does not wait. It is asked again every
//!   10 ms here, so how often it asks and how fast it hands over are figures of that pause.
//! - PostgreSQL: six statements a cycle. A handle that is dropped leaves its connection in the pool with the lock held.
//! - MySQL: without a timeout `acquire` fails on MariaDB, so it is given an hour.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distributed_lock_core::{DistributedLock, LockError, LockHandle, LockProvider};
use distributed_lock_mysql::MySqlLockProvider;
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_redis::RedisLockProvider;
use onelock_bench::networked::Connector;
use onelock_bench::plain::{self, Plain};
use onelock_bench::subject::{LockSpec, Client, Failure, Lock, Need};

const LONG: Duration = Duration::from_secs(3_600);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Redis;
pub(crate) struct Postgres;
pub(crate) struct MySql;

/// A provider, and how long to wait after a lock was found held.
struct Provider<P> {
    provider: P,
    pause: Option<Duration>,
}

struct Name<L> {
    lock: L,
    pause: Option<Duration>,
}

#[async_trait]
impl Connector for Redis {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let builder = RedisLockProvider::builder().url(format!("redis://{server}")).expiry(lease);
        let provider = builder.extension_cadence(lease / 3).build().await?;
        Ok(Arc::new(Provider { provider, pause: Some(PAUSE) }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks(need)
    }
}

#[async_trait]
impl Connector for Postgres {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let url = format!("postgres://postgres@{server}/postgres?sslmode=disable");
        Ok(Arc::new(Provider { provider: PostgresLockProvider::new(url).await?, pause: None }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        per_connection(need)
    }
}

#[async_trait]
impl Connector for MySql {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let url = format!("mysql://root@{server}/locks?ssl-mode=disabled");
        Ok(Arc::new(Provider { provider: MySqlLockProvider::new(url).await?, pause: None }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        per_connection(need)
    }
}

fn per_connection(need: Need) -> Option<String> {
    match need {
        Need::Renewal => Some("each lock that is held has a connection of its own".to_owned()),
        need => super::lacks(need),
    }
}

#[async_trait]
impl<P> Client for Provider<P>
where
    P: LockProvider + Send + Sync,
    P::Lock: 'static,
    <P::Lock as DistributedLock>::Handle: Sync + 'static,
{
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { lock: self.provider.create_lock(ask.name), pause: self.pause }))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<L> Plain for Name<L>
where
    L: DistributedLock + 'static,
    L::Handle: Sync + 'static,
{
    type Kept = L::Handle;

    async fn take(&self, wait: bool) -> Result<Option<L::Handle>, Failure> {
        if !wait {
            return Ok(self.lock.try_acquire().await?);
        }
        loop {
            match (self.lock.acquire(Some(LONG)).await, self.pause) {
                (Ok(handle), _) => return Ok(Some(handle)),
                (Err(LockError::Timeout(_)), Some(pause)) => tokio::time::sleep(pause).await,
                (Err(error), _) => return Err(error.into()),
            }
        }
    }

    async fn give_back(&self, handle: L::Handle) -> Result<(), Failure> {
        Ok(handle.release().await?)
    }
}
