//! A row that is inserted, which waits for the disk, and deleted, which does not; and the server's session locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Postgres};

use super::{Pair, client, lacks};
use crate::networked::Way;
use crate::subject::{Client, Failure, Need};

pub(super) const DRIVER: &str = "sqlx 0.9";

/// As many connections as a client of this library has unless it is configured.
const CONNECTIONS: u32 = 4;
const SESSIONS: u32 = 32;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS baseline (name text PRIMARY KEY)";
const TAKE: &str = "INSERT INTO baseline VALUES ($1) ON CONFLICT DO NOTHING";
const GIVE: &str = "WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)) \
                    DELETE FROM baseline USING fast WHERE name = $1";

pub(super) struct Rows {
    pub(super) durable: bool,
}

pub(super) struct Advisory;

async fn pool(server: SocketAddr, connections: u32, commit: &str) -> Result<PgPool, Failure> {
    let options = PgConnectOptions::new_without_pgpass()
        .host(&server.ip().to_string())
        .port(server.port())
        .username("postgres")
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
        .options([("synchronous_commit", commit)])
        .disable_statement_logging();
    // A bare request is not preceded by one that tests the connection.
    let pool = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(pool.connect_with(options).await?)
}

#[async_trait]
impl Way for Rows {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        let pool = pool(server, CONNECTIONS, if self.durable { "on" } else { "off" }).await?;
        // Two that make it at the same time get an error: all but the first find it.
        let made = sqlx::query(TABLE).execute(&pool).await;
        if made.is_err() {
            sqlx::query(TABLE).execute(&pool).await?;
        }
        Ok(client(Table(pool)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        lacks(need)
    }
}

#[async_trait]
impl Way for Advisory {
    async fn open(&self, server: SocketAddr, _: Duration) -> Result<Arc<dyn Client>, Failure> {
        Ok(client(Sessions(pool(server, SESSIONS, "on").await?)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        lacks(need)
    }
}

#[derive(Clone)]
struct Table(PgPool);

impl Pair for Table {
    type Kept = ();

    async fn take(&self, name: &str) -> Result<Option<()>, Failure> {
        let taken = sqlx::query(TAKE).bind(name).execute(&self.0).await?.rows_affected();
        Ok((taken == 1).then_some(()))
    }

    async fn give_back(&self, name: &str, (): ()) -> Result<bool, Failure> {
        Ok(sqlx::query(GIVE).bind(name).execute(&self.0).await?.rows_affected() == 1)
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
struct Sessions(PgPool);

impl Pair for Sessions {
    type Kept = PoolConnection<Postgres>;

    async fn take(&self, name: &str) -> Result<Option<Self::Kept>, Failure> {
        let mut connection = self.0.acquire().await?;
        let taken = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(number(name));
        let taken: bool = taken.fetch_one(&mut *connection).await?;
        Ok(taken.then_some(connection))
    }

    async fn give_back(&self, name: &str, mut connection: Self::Kept) -> Result<bool, Failure> {
        let given = sqlx::query_scalar("SELECT pg_advisory_unlock($1)").bind(number(name));
        Ok(given.fetch_one(&mut *connection).await?)
    }

    async fn ping(&self) -> Result<bool, Failure> {
        Table(self.0.clone()).ping().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await;
        Ok(())
    }
}

/// Some number of the name.
fn number(name: &str) -> i64 {
    name.bytes().fold(7, |number: i64, byte| number.wrapping_mul(31).wrapping_add(byte.into()))
}
