//! How a connection is made: where it leads and with which credentials is found out for each anew.

use futures_util::TryStreamExt as _;
use onelock_core::Result;
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Execute, Executor as _, MySql,
    MySqlConnection,
};

use super::config::MySqlConfig;
use super::error::{DEMOTED, explain, number};
use super::sql::{Value, fill};
use crate::hosts::in_time;
use crate::pool::Answer;

/// A connection to the server that takes writes, within the time for connecting. Its statements wait for rows and tables for so
/// many seconds.
pub(crate) async fn connect(config: &MySqlConfig, lock_wait: i64) -> Result<MySqlConnection> {
    let session = fill(include_str!("sql/session.sql"), "onelock_", &[("lock_wait", Value::Int(lock_wait))]);
    let connecting = async {
        let of = |host: &_, user: Option<&_>, password: Option<&_>| config.options(host, user, password);
        let options = config.endpoints().options(of, takes_writes).await?;
        let mut conn = options.connect().await?;
        send(&mut conn, session).await?;
        Ok(conn)
    };
    in_time(config.connect_timeout, connecting).await.map_err(explain)
}

/// Whether it may keep locks.
async fn takes_writes(options: MySqlConnectOptions) -> Result<bool, sqlx::Error> {
    let mut conn = options.connect().await?;
    let answer = send(&mut conn, only_on_a_primary()).await;
    // Only so that the server need not find out.
    let _ = conn.close().await;
    match answer {
        Err(error) if number(&error) == Some(DEMOTED) => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// A statement that fails with [`DEMOTED`] on a server that takes no writes.
pub(crate) fn only_on_a_primary() -> String {
    fill(include_str!("sql/primary.sql"), "onelock_", &[])
}

/// The rows of all results of a request, and how many rows all its statements found to change.
pub(crate) type Sent = Result<Answer<MySqlRow>, sqlx::Error>;

/// Sends a request that was filled in by [`fill`].
pub(crate) async fn send(conn: &mut MySqlConnection, sql: impl Into<String>) -> Sent {
    // Safe: `fill` writes values as numbers and hexadecimal literals only.
    answer(conn, sqlx::raw_sql(AssertSqlSafe(sql.into()))).await
}

pub(super) async fn answer<'q>(conn: &mut MySqlConnection, query: impl Execute<'q, MySql> + 'q) -> Sent {
    let mut parts = conn.fetch_many(query);
    let (mut rows, mut changed) = (Vec::new(), 0_u64);
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Left(result) => changed = changed.saturating_add(result.rows_affected()),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(Answer::new(rows, changed))
}
