//! How a call goes over a connection: by a prepared statement where the connection is one session of the server, and spelled
//! out in one message where a pooler may give each transaction another session.

use std::sync::atomic::{AtomicBool, Ordering};

use onelock_core::{Error, Result};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor as _};

use super::config::PostgresConfig;
use super::connect::connect;
use super::error::{denied, fault};
use super::sql::Call;
use crate::pool::{self, Answer, Connect, Fault, Server};

pub(super) type Pool = pool::Pool<Postgres>;

pub(super) struct Postgres {
    pub(super) config: PostgresConfig,
    /// Whether a connection made now is one session of the server: proven, or it is not used as one.
    direct: AtomicBool,
}

pub(super) struct Conn {
    pub(super) conn: PgConnection,
    /// Whether it is one session, and has its level set.
    ready: bool,
}

impl Postgres {
    pub(super) fn new(config: &PostgresConfig) -> Self {
        Self { config: config.clone(), direct: AtomicBool::new(false) }
    }

    /// Whether connections made from now on are sessions of the server. Those that are in use stay what they are.
    pub(super) fn set_direct(&self, direct: bool) {
        self.direct.store(direct, Ordering::Release);
    }
}

impl Connect for Postgres {
    type Conn = Conn;

    async fn connect(&self) -> Result<Conn> {
        Ok(Conn { conn: connect(&self.config).await?, ready: false })
    }

    fn fault(error: &sqlx::Error) -> Fault {
        fault(error)
    }
}

impl Server for Postgres {
    type Request = Call;
    type Row = PgRow;

    async fn send(&self, conn: &mut Conn, call: &Call) -> Result<Answer<PgRow>, sqlx::Error> {
        // A client that was not answered in that time is gone, and must not wait for a name on a server's connection without end.
        let ms = self.config.request_timeout.as_millis().max(1);
        if !conn.ready && self.direct.load(Ordering::Acquire) {
            let set = format!(include_str!("sql/session.sql"), ms = ms);
            conn.conn.execute(sqlx::raw_sql(AssertSqlSafe(set))).await?;
            conn.ready = true;
        }
        let rows = if conn.ready {
            call.bound().fetch_all(&mut conn.conn).await?
        } else {
            conn.conn.fetch_all(sqlx::raw_sql(call.spelled(ms)?)).await?
        };
        Ok(Answer::new(rows, 0))
    }

    fn explain(&self, error: sqlx::Error, call: &Call) -> Error {
        let (schema, function) = (&self.config.namespace, call.function());
        denied(error, &format!("USAGE on schema {schema} and EXECUTE on function {schema}.{function}"))
    }
}
