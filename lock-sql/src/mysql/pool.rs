//! How a request goes over a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use onelock_core::Error;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Either, Executor as _, MySqlConnection};

use super::config::MySqlConfig;
use super::connect::Connector;
use super::error::{explain, fault};
use super::sql::{Sql, Value};
use crate::hosts::in_time;
use crate::pool::{self, Fault, Server};

/// The rows of all results, and how many rows all statements found to change.
pub(super) type Answer = pool::Answer<MySqlRow>;

pub(super) type Pool = pool::Pool<MySql>;

/// The connections of one client, and what it asks.
pub(super) struct Client {
    pub(super) sql: Sql,
    pub(super) verbs: Pool,
    /// The waiters' polls have a connection of their own: they never queue behind verbs.
    pub(super) polls: Pool,
}

impl Client {
    pub(super) fn new(config: &MySqlConfig) -> Self {
        let sql = Sql::new(&config.namespace);
        // A part of it: the server refuses a verb in time for another try, and one that was given up here does not wait there
        // for much longer.
        let seconds = i64::try_from(config.request_timeout.as_secs() / 4).unwrap_or(i64::MAX).max(1);
        let session = sql.session.fill(&[("lock_wait", Value::Int(seconds))]);
        let pool = |connections| Pool::new(MySql::new(config, &session), connections, config.request_timeout);
        Self { sql, verbs: pool(config.connections), polls: pool(1) }
    }

    pub(super) fn close(&self) {
        self.verbs.close();
        self.polls.close();
    }
}

pub(super) struct MySql {
    connector: Connector,
    connect_timeout: Duration,
    /// What every connection sets first.
    session: String,
    /// Whether the server takes compound blocks.
    pub(super) blocks: AtomicBool,
}

impl MySql {
    fn new(config: &MySqlConfig, session: &str) -> Self {
        let (connector, session) = (Connector::new(config), session.to_owned());
        Self { connector, connect_timeout: config.connect_timeout, session, blocks: AtomicBool::new(false) }
    }
}

impl Server for MySql {
    type Conn = MySqlConnection;
    type Request = str;
    type Row = MySqlRow;

    async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        let connecting = async {
            let mut conn = self.connector.connect().await?;
            run(&mut conn, &*self.session).await?;
            Ok(conn)
        };
        in_time(self.connect_timeout, connecting).await
    }

    /// Several statements in one request are answered one by one, each in a packet of its own; a block of MariaDB is
    /// answered once, in about half the time.
    async fn send(&self, conn: &mut MySqlConnection, sql: &str) -> Result<Answer, sqlx::Error> {
        let block = sql.starts_with("START TRANSACTION") && self.blocks.load(Ordering::Acquire);
        let sent =
            send(conn, if block { format!("BEGIN NOT ATOMIC\n{sql}END") } else { sql.to_owned() }).await;
        if let Err(error) = &sent
            && fault(error) != Fault::Broken
        {
            // Some errors end the statement only: without this its transaction would go on.
            run(conn, "ROLLBACK").await?;
        }
        sent
    }

    fn fault(error: &sqlx::Error) -> Fault {
        fault(error)
    }

    fn explain(&self, error: sqlx::Error, _request: Option<&str>) -> Error {
        explain(error)
    }
}

/// Sends a request that was filled in by a [`Template`](super::sql::Template), and gives the rows of all its results.
pub(crate) async fn run(
    connection: &mut MySqlConnection,
    sql: impl Into<String>,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    Ok(send(connection, sql.into()).await?.rows)
}

async fn send(connection: &mut MySqlConnection, sql: String) -> Result<Answer, sqlx::Error> {
    // Safe: `sql` was filled in by a `Template`, which writes values as numbers and hexadecimal literals only.
    let mut parts = connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(sql)));
    let (mut rows, mut changed) = (Vec::new(), 0_u64);
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Left(result) => changed = changed.saturating_add(result.rows_affected()),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(Answer::new(rows, changed))
}
