//! MySQL and MariaDB.

use std::net::SocketAddr;

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::{ConnectOptions as _, MySql, MySqlConnection};

use super::sql::Dialect;

#[derive(Clone, Copy)]
pub(super) struct Server;

impl Dialect for Server {
    type Server = MySql;

    const TABLE: &'static str = "CREATE TABLE IF NOT EXISTS baseline (name VARCHAR(255) PRIMARY KEY)";
    const ROW: [&'static str; 2] =
        ["INSERT IGNORE INTO baseline VALUES (?)", "DELETE FROM baseline WHERE name = ?"];
    const SESSION: [&'static str; 2] = ["SELECT GET_LOCK(?, 0)", "SELECT RELEASE_LOCK(?)"];

    fn options(&self, server: SocketAddr) -> MySqlConnectOptions {
        MySqlConnectOptions::new()
            .host(&server.ip().to_string())
            .port(server.port())
            .username("root")
            .database("locks")
            .ssl_mode(MySqlSslMode::Disabled)
            .disable_statement_logging()
    }

    async fn execute(
        connection: &mut MySqlConnection,
        sql: &'static str,
        name: Option<&str>,
    ) -> sqlx::Result<u64> {
        let query = sqlx::query(sql);
        let query = if let Some(name) = name { query.bind(name) } else { query };
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn holds(connection: &mut MySqlConnection, sql: &'static str, name: &str) -> sqlx::Result<bool> {
        let answer: Option<i64> = sqlx::query_scalar(sql).bind(name).fetch_one(connection).await?;
        Ok(answer == Some(1))
    }
}
