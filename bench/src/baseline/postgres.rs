//! PostgreSQL: its inserted row waits for the disk, its deletion does not.

use std::net::SocketAddr;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions as _, PgConnection, Postgres};

use super::sql::Dialect;

/// Whether commits wait for the disk.
#[derive(Clone, Copy)]
pub(super) struct Server {
    pub(super) durable: bool,
}

impl Dialect for Server {
    type Server = Postgres;

    const TABLE: &'static str = "CREATE TABLE IF NOT EXISTS baseline (name text PRIMARY KEY)";
    const ROW: [&'static str; 2] = [
        "INSERT INTO baseline VALUES ($1) ON CONFLICT DO NOTHING",
        "WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)) \
         DELETE FROM baseline USING fast WHERE name = $1",
    ];
    const SESSION: [&'static str; 2] = ["SELECT pg_try_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"];

    fn options(&self, server: SocketAddr) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host(&server.ip().to_string())
            .port(server.port())
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
            .options([("synchronous_commit", if self.durable { "on" } else { "off" })])
            .disable_statement_logging()
    }

    async fn execute(
        connection: &mut PgConnection,
        sql: &'static str,
        name: Option<&str>,
    ) -> sqlx::Result<u64> {
        let query = sqlx::query(sql);
        let query = if let Some(name) = name { query.bind(name) } else { query };
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn holds(connection: &mut PgConnection, sql: &'static str, name: &str) -> sqlx::Result<bool> {
        // Some number of the name.
        let number = |number: i64, byte: u8| number.wrapping_mul(31).wrapping_add(byte.into());
        let number = name.bytes().fold(7, number);
        sqlx::query_scalar(sql).bind(number).fetch_one(connection).await
    }
}
