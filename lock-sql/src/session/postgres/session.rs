//! A session of the server: how it is reached, what is set in it first, and what its end means.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor as _, Row as _, SqlSafeStr as _};

use super::asking::Sql;
use crate::postgres::PostgresConfig;
use crate::postgres::connect::Connector;
use crate::postgres::error::{denied, explain, state};
use crate::session::dialect::Id;
use crate::session::sessions::{silent, strange};
use crate::unharmed::{legible, unharmed};

#[derive(Debug)]
pub(super) struct Postgres {
    connector: Connector,
    schema: String,
    pub(super) request_timeout: Duration,
    pub(super) sql: Sql,
}

impl Postgres {
    pub(super) fn new(config: &PostgresConfig) -> Self {
        Self {
            connector: Connector::new(config),
            schema: config.namespace.clone(),
            request_timeout: config.request_timeout,
            sql: Sql::new(&config.namespace),
        }
    }

    /// A connection in which nothing is set yet.
    pub(super) async fn reach(&self) -> Result<PgConnection> {
        self.connector.connect().await.map_err(|error| denied(error, "CONNECT on the database"))
    }

    pub(super) async fn set_up(&self, mut conn: PgConnection, limit: Duration) -> Result<Conn> {
        ask_raw(&mut conn, include_str!("sql/settings.sql"), limit).await?;
        let rows = ask_raw(&mut conn, &self.sql.rare(include_str!("sql/begin.sql")), limit).await?;
        let (standby, pid, born): (bool, i32, i64) = match &rows[..] {
            [row] => legible(|| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?)))?,
            _ => return Err(strange()),
        };
        if standby {
            return Err(Error::new(ErrorKind::Unavailable, "the server takes no writes: is it a standby?"));
        }
        // What every lock asks for takes one round trip from the first time on.
        let prepare = async {
            for sql in self.sql.prepared() {
                conn.prepare(AssertSqlSafe(Arc::clone(sql)).into_sql_str()).await?;
            }
            Ok(())
        };
        match tokio::time::timeout(limit, unharmed(prepare)).await {
            Ok(done) => done.map_err(|error| self.explained(error))?,
            Err(_) => return Err(silent()),
        }
        let id = Id { process: pid.into(), born };
        Ok(Conn { conn, id, epoch: TokenEpoch::default() })
    }

    pub(super) fn explained(&self, error: sqlx::Error) -> Error {
        // By somebody's order, or for having been idle.
        if matches!(state(&error).as_deref(), Some("57P01" | "57P05")) {
            return Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(error);
        }
        let schema = &self.schema;
        denied(
            error,
            &format!(
                "USAGE on schema {schema} and on sequence {schema}.number, EXECUTE on function \
                 {schema}.begin_session, and the role of the session that is to be ended"
            ),
        )
    }
}

/// A connection, and the server's process at its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) conn: PgConnection,
    pub(super) id: Id,
    /// The largest that it has begun.
    pub(super) epoch: TokenEpoch,
}

pub(super) fn get<'r, T>(row: &'r PgRow, column: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column).map_err(explain)
}

pub(super) fn pooled() -> Error {
    let text = "behind a pooler that gives each transaction another session there are no session locks; use a \
                direct connection, or postgres://";
    Error::new(ErrorKind::Unsupported, text)
}

/// One message that needs nothing prepared.
pub(super) async fn ask_raw(conn: &mut PgConnection, sql: &str, limit: Duration) -> Result<Vec<PgRow>> {
    let asked = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())));
    match tokio::time::timeout(limit, unharmed(asked)).await {
        Ok(rows) => rows.map_err(|error| denied(error, "the rights on the store's page")),
        Err(_) => Err(silent()),
    }
}
