//! The two requests of a session lock, as prepared statements, each lock on a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};
use tokio::sync::OwnedSemaphorePermit;

use super::pool::Pool;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 32;

const TAKE: &str = include_str!("../../../lock-sql/src/session/postgres/sql/take.sql");
const GIVE: &str = include_str!("../../../lock-sql/src/session/postgres/sql/give.sql");

pub(super) struct Floor;

struct Shared {
    pool: Pool<PgConnection>,
    options: PgConnectOptions,
    attempt: Arc<str>,
    take: Arc<str>,
    give: Arc<str>,
    lease: u128,
}

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let take = |taken| {
            let sql = TAKE.trim_end().replace("{schema}", "onelock_session").replace("{taken}", taken);
            sql.replace("{unlock}", "pg_advisory_unlock")
        };
        let shared = Shared {
            pool: Pool::new(CONNECTIONS),
            options: super::postgres::options(server),
            attempt: take("pg_try_advisory_lock($1)").into(),
            take: take("pg_advisory_lock($1) IS NOT NULL").into(),
            give: GIVE.trim_end().replace("{unlock}", "pg_advisory_unlock").into(),
            lease: lease.as_millis(),
        };
        let (permit, _) = shared.pool.lend().await?;
        shared.pool.take_back(shared.connect().await?);
        drop(permit);
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

impl Shared {
    async fn connect(&self) -> Result<PgConnection, Failure> {
        let mut connection = self.options.connect().await?;
        let settings = format!("SET idle_session_timeout = {}; SET synchronous_commit = off", self.lease);
        connection.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await?;
        Ok(connection)
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, PgConnection), Failure> {
        let (permit, free) = self.pool.lend().await?;
        match free {
            Some(connection) => Ok((permit, connection)),
            None => Ok((permit, self.connect().await?)),
        }
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        // Some number of the name.
        let key = ask.name.bytes().fold(7, |key: i64, byte| key.wrapping_mul(31).wrapping_add(byte.into()));
        Ok(plain::lock(Name { shared: Arc::clone(&self.0), key }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let (_permit, mut connection) = self.0.lend().await?;
        sqlx::query("SELECT 1").fetch_one(&mut connection).await?;
        self.0.pool.take_back(connection);
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.pool.close().await
    }
}

struct Name {
    shared: Arc<Shared>,
    key: i64,
}

impl Plain for Name {
    type Kept = (OwnedSemaphorePermit, PgConnection);

    async fn take(&self, wait: bool) -> Result<Option<Self::Kept>, Failure> {
        let (permit, mut connection) = self.shared.lend().await?;
        let sql = if wait { &self.shared.take } else { &self.shared.attempt };
        let label = " abcdefghijk floor:1";
        let query = sqlx::query(AssertSqlSafe(Arc::clone(sql))).bind(self.key).bind(label);
        let row = query.bind(None::<String>).bind(0).fetch_one(&mut connection).await?;
        let taken: Option<String> = row.try_get(2)?;
        if taken.is_none() {
            self.shared.pool.take_back(connection);
            return Ok(None);
        }
        Ok(Some((permit, connection)))
    }

    async fn give_back(&self, (_permit, mut connection): Self::Kept) -> Result<(), Failure> {
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.shared.give))).bind(self.key);
        let given: bool = query.fetch_one(&mut connection).await?.try_get(1)?;
        self.shared.pool.take_back(connection);
        if given { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
