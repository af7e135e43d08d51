//! The two requests of a session lock, as prepared statements, each lock on a connection of its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::mysql::options;
use super::mysql_text::ask;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 32;

const TAKE: &str = include_str!("../../../lock-sql/src/session/mysql/sql/take.sql");
const GIVE: &str = include_str!("../../../lock-sql/src/session/mysql/sql/give.sql");

pub(super) struct Floor;

struct Shared {
    options: MySqlConnectOptions,
    permits: Arc<Semaphore>,
    free: Mutex<Vec<MySqlConnection>>,
    lease: u64,
}

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let shared = Shared {
            options: options(server),
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            free: Mutex::default(),
            lease: lease.as_secs().max(1),
        };
        shared.take_back(shared.connect().await?);
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

impl Shared {
    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await?;
        connection
            .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SET wait_timeout = {}", self.lease))))
            .await?;
        Ok(connection)
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, MySqlConnection), Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match free {
            Some(connection) => Ok((permit, connection)),
            None => Ok((permit, self.connect().await?)),
        }
    }

    fn take_back(&self, connection: MySqlConnection) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(Name { shared: Arc::clone(&self.0), key: ask.name.to_owned() }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let (_permit, mut connection) = self.0.lend().await?;
        ask(&mut connection, "SELECT 1").await?;
        self.0.take_back(connection);
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        let free = std::mem::take(&mut *self.0.free.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in free {
            connection.close().await?;
        }
        Ok(())
    }
}

struct Name {
    shared: Arc<Shared>,
    key: String,
}

impl Plain for Name {
    type Kept = (OwnedSemaphorePermit, MySqlConnection);

    async fn take(&self, wait: bool) -> Result<Option<Self::Kept>, Failure> {
        let (permit, mut connection) = self.shared.lend().await?;
        let patience: i64 = if wait { 31_536_000 } else { 0 };
        let row = sqlx::query(TAKE)
            .bind("abcdefghijk")
            .bind(&self.key)
            .bind(patience)
            .bind(0_i64)
            .fetch_one(&mut connection)
            .await?;
        if row.try_get::<Option<i64>, _>(1)?.is_none() {
            self.shared.take_back(connection);
            return Ok(None);
        }
        Ok(Some((permit, connection)))
    }

    async fn give_back(&self, (_permit, mut connection): Self::Kept) -> Result<(), Failure> {
        let row = sqlx::query(GIVE).bind(&self.key).fetch_one(&mut connection).await?;
        let given = row.try_get::<i64, _>(1)? == 1;
        self.shared.take_back(connection);
        if given { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
