//! How a connection is made: where it leads and with which credentials is found out for each anew.

use onelock_core::Result;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, FromRow};

use super::config::PostgresConfig;
use super::error::denied;
use crate::hosts::in_time;
use crate::unharmed::unharmed;

/// Whether it may keep locks: a standby's transactions are read-only, too.
pub(super) const PRIMARY: &str = "SELECT current_setting('transaction_read_only') = 'off'";

/// A connection in which nothing is set yet, to the server that takes writes, within the time for connecting.
pub(crate) async fn connect(config: &PostgresConfig) -> Result<PgConnection> {
    let connecting = async { options(config).await?.connect().await };
    let connected = in_time(config.connect_timeout, connecting).await;
    connected.map_err(|error| denied(error, "CONNECT on the database"))
}

/// What the driver takes for it. Its `Debug` shows the password.
pub(super) async fn options(config: &PostgresConfig) -> Result<PgConnectOptions, sqlx::Error> {
    let of = |host: &_, user: Option<&_>, password: Option<&_>| config.options(host, user, password);
    config.endpoints().options(of, takes_writes).await
}

async fn takes_writes(options: PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut conn = options.connect().await?;
    let (answer,) = raw(&mut conn, PRIMARY).await?;
    // Only so that the server need not find out.
    let _ = conn.close().await;
    Ok(answer)
}

/// The first row of one message that needs nothing prepared: there may be a pooler between.
pub(crate) async fn raw<T>(conn: &mut PgConnection, sql: impl Into<String>) -> Result<T, sqlx::Error>
where
    T: for<'r> FromRow<'r, PgRow>,
{
    let sql = AssertSqlSafe(sql.into());
    unharmed(async { T::from_row(&conn.fetch_one(sqlx::raw_sql(sql)).await?) }).await
}
