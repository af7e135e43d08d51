//! sqlx's own advisory lock: the server's queue, and a connection for each lock that is held or waited for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_bench::networked::Connector;
use onelock_bench::plain::{self, Plain};
use onelock_bench::subject::{LockSpec, Client, Failure, Lock, Need};
use sqlx::Either;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{
    PgAdvisoryLock, PgAdvisoryLockGuard, PgConnectOptions, PgPool, PgPoolOptions, PgSslMode,
};

/// Connections of a client at most.
const CONNECTIONS: u32 = 64;

pub(crate) struct Advisory;

struct Pool(PgPool);

#[async_trait]
impl Connector for Advisory {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = PgConnectOptions::new_without_pgpass()
            .host(&server.ip().to_string())
            .port(server.port())
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable);
        Ok(Arc::new(Pool(PgPoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await?)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Renewal => Some("each lock that is held has a connection of its own".to_owned()),
            need => super::lacks(need),
        }
    }
}

#[async_trait]
impl Client for Pool {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { pool: self.0.clone(), lock: PgAdvisoryLock::new(ask.name) }))
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await;
        Ok(())
    }
}

struct Name {
    pool: PgPool,
    lock: PgAdvisoryLock,
}

impl Plain for Name {
    type Kept = PgAdvisoryLockGuard<PoolConnection<Postgres>>;

    async fn take(&self, wait: bool) -> Result<Option<Self::Kept>, Failure> {
        let connection = self.pool.acquire().await?;
        if wait {
            return Ok(Some(self.lock.acquire(connection).await?));
        }
        match self.lock.try_acquire(connection).await? {
            Either::Left(guard) => Ok(Some(guard)),
            Either::Right(_) => Ok(None),
        }
    }

    async fn give_back(&self, guard: Self::Kept) -> Result<(), Failure> {
        guard.release_now().await?;
        Ok(())
    }
}
