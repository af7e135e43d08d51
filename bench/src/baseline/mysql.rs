//! A row that is inserted and deleted; and the server's named locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions, MySqlSslMode};
use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions as _, MySql};

use super::{Pair, client, lacks};
use crate::networked::Way;
use crate::subject::{Client, Failure, Need};

pub(super) const DRIVER: &str = "sqlx 0.9";

/// As many connections as a client of this library has unless it is configured.
const CONNECTIONS: u32 = 4;
const SESSIONS: u32 = 32;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS baseline (name VARCHAR(255) PRIMARY KEY)";

pub(super) struct Rows;

pub(super) struct NamedLocks;

async fn pool(server: SocketAddr, connections: u32) -> Result<MySqlPool, Failure> {
    let options = MySqlConnectOptions::new()
        .host(&server.ip().to_string())
        .port(server.port())
        .username("root")
        .database("locks")
        .ssl_mode(MySqlSslMode::Disabled)
        .disable_statement_logging();
    // A bare request is not preceded by one that tests the connection.
    let pool = MySqlPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(pool.connect_with(options).await?)
}

#[async_trait]
impl Way for Rows {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let pool = pool(server, CONNECTIONS).await?;
        sqlx::query(TABLE).execute(&pool).await?;
        Ok(client(Table(pool)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        lacks(need)
    }
}

#[async_trait]
impl Way for NamedLocks {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        Ok(client(Sessions(pool(server, SESSIONS).await?)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        lacks(need)
    }
}

#[derive(Clone)]
struct Table(MySqlPool);

impl Pair for Table {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        let taken = sqlx::query("INSERT IGNORE INTO baseline VALUES (?)").bind(name).execute(&self.0);
        Ok((taken.await?.rows_affected() == 1).then_some(()))
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        let given = sqlx::query("DELETE FROM baseline WHERE name = ?").bind(name).execute(&self.0);
        Ok(given.await?.rows_affected() == 1)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        sqlx::query("SELECT 1").execute(&self.0).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await;
        Ok(())
    }
}

/// Each lock on a connection of its own.
#[derive(Clone)]
struct Sessions(MySqlPool);

impl Pair for Sessions {
    type Kept = PoolConnection<MySql>;

    async fn take(&self, name: &str) -> Result<Option<Self::Kept>, Failure> {
        let mut connection = self.0.acquire().await?;
        let taken = sqlx::query_scalar("SELECT GET_LOCK(?, 0)").bind(name);
        let taken: Option<i64> = taken.fetch_one(&mut *connection).await?;
        Ok((taken == Some(1)).then_some(connection))
    }

    async fn give_back(&self, name: &str, mut connection: Self::Kept) -> Result<bool, Failure> {
        let given = sqlx::query_scalar("SELECT RELEASE_LOCK(?)").bind(name);
        let given: Option<i64> = given.fetch_one(&mut *connection).await?;
        Ok(given == Some(1))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        Table(self.0.clone()).ping().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await;
        Ok(())
    }
}
