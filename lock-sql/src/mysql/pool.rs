//! How a request goes over a connection.

use std::sync::atomic::{AtomicBool, Ordering};

use onelock_core::{Error, Result};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::config::MySqlConfig;
use super::connect::{answer, connect, only_on_a_primary, send};
use super::error::{explain, fault, number};
use super::sql::{Call, Value};
use crate::pool::{self, Connect, Fault, Lane, Server};

/// The rows of all results, and how many rows all statements found to change.
pub(super) type Answer = pool::Answer<MySqlRow>;

pub(super) type Pool = pool::Pool<MySql>;

/// The connections of one client, and what it asks.
pub(super) struct Client {
    /// What the tables' names begin with.
    pub(super) prefix: String,
    pub(super) verbs: Pool,
    /// The waiters' polls have a connection of their own: they never queue behind verbs.
    pub(super) polls: Pool,
}

impl Client {
    pub(super) fn new(config: &MySqlConfig) -> Self {
        let pool = |connections, check| {
            let server = MySql { config: config.clone(), check, blocks: AtomicBool::new(false) };
            Pool::new(server, connections, config.request_timeout)
        };
        let several = config.hosts.len() > 1;
        let check = if several { only_on_a_primary() } else { String::new() };
        Self {
            prefix: config.namespace.clone(),
            verbs: pool(config.connections, check),
            // A poll has its own.
            polls: pool(1, String::new()),
        }
    }

    /// A request of the `sql/` folder.
    pub(super) fn call(&self, text: &str, values: &[(&str, Value)]) -> Call {
        Call::new(text, &self.prefix, values)
    }

    /// Asks such a request, which is not sent often.
    pub(super) async fn ask<T>(
        &self,
        text: &str,
        values: &[(&str, Value)],
        read: impl FnOnce(&Answer) -> Result<T>,
    ) -> Result<T> {
        let call = Call { sql: self.call(text, values).text(), values: Vec::new() };
        self.verbs.ask(Lane::Verb, &call, read).await
    }

    pub(super) fn close(&self) {
        self.verbs.close();
        self.polls.close();
    }
}

/// Some errors end the statement only, and its transaction would go on until the caller is polled.
const UNDO: &str = "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\n";

pub(super) struct MySql {
    config: MySqlConfig,
    /// What is sent before and behind each request where another server may be the primary by now: `read_only` does not stop
    /// every user. Behind it, because a commit of such a user is not stopped either.
    check: String,
    /// Whether the server takes compound blocks.
    pub(super) blocks: AtomicBool,
}

impl Connect for MySql {
    type Conn = MySqlConnection;

    async fn connect(&self) -> Result<MySqlConnection> {
        // A part of it: the server refuses a verb in time for another try, and one that was given up here does not wait there
        // for much longer.
        let seconds = self.config.request_timeout.as_secs() / 4;
        connect(&self.config, i64::try_from(seconds).unwrap_or(i64::MAX).max(1)).await
    }

    fn fault(error: &sqlx::Error) -> Fault {
        fault(error)
    }
}

impl Server for MySql {
    type Request = Call;
    type Row = MySqlRow;

    /// Several statements in one request are answered one by one, each in a packet of its own; a block of MariaDB is
    /// answered once, in about half the time, and has conditions, which are comments elsewhere. A request with values apart
    /// is prepared where it is one statement: parsing it costs the server as much as executing it.
    async fn send(&self, conn: &mut MySqlConnection, call: &Call) -> Result<Answer, sqlx::Error> {
        let (check, blocks) = (&self.check, self.blocks.load(Ordering::Acquire));
        let block = blocks && call.sql.starts_with("START TRANSACTION");
        let whole = |sql: &str| match block {
            true => {
                let sql = sql.replace("/* ", "").replace(" */", "");
                format!("BEGIN NOT ATOMIC\n{UNDO}{check}{sql}{check}END")
            }
            false => format!("{check}{sql}{check}"),
        };
        let mut prepared = blocks && !call.values.is_empty() && (block || check.is_empty());
        let mut sent = Ok(Answer::new(Vec::new(), 0));
        if prepared {
            // The text is ours.
            let query = sqlx::query(AssertSqlSafe(whole(&call.sql)));
            let query = call.values.iter().fold(query, |query, value| match value {
                Value::Bytes(bytes) => query.bind(bytes),
                Value::Int(number) => query.bind(number),
                Value::Digest(_) | Value::Part(_) => query,
            });
            sent = answer(conn, query).await;
            // Not a statement that can be prepared, `max_prepared_stmt_count` is reached, or its tables were defined anew too often.
            prepared = !matches!(sent.as_ref().err().and_then(number), Some(1295 | 1461 | 1615));
        }
        if !prepared {
            sent = send(conn, whole(&call.text())).await;
        }
        if let Err(error) = &sent
            && fault(error) != Fault::Broken
        {
            // As `UNDO`, where there are no blocks.
            send(conn, "ROLLBACK").await?;
        }
        sent
    }

    fn explain(&self, error: sqlx::Error, _request: &Call) -> Error {
        explain(error)
    }
}
