//! A session of the server: how it is made, what is set in it first, and what its end means.

use std::sync::Arc;

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};

use crate::postgres::PostgresConfig;
use crate::postgres::connect::{connect, raw};
use crate::postgres::error::{denied, state};
use crate::session::dialect::Id;
use crate::unharmed::unharmed;

pub(super) type Query = sqlx::query::Query<'static, sqlx::Postgres, PgArguments>;

/// Which of the prepared statements it is.
pub(super) const TAKE: usize = 0;
pub(super) const BEAT: usize = 1;
pub(super) const GIVE: usize = 2;

#[derive(Debug)]
pub(super) struct Postgres {
    config: PostgresConfig,
    /// What every lock asks for. In a session's name stands what it holds: `onelock <number> <tag> <note>`.
    prepared: [Arc<str>; 3],
}

impl Postgres {
    pub(super) fn new(config: &PostgresConfig) -> Self {
        let texts =
            [include_str!("sql/take.sql"), include_str!("sql/beat.sql"), include_str!("sql/give.sql")];
        let prepared = texts.map(|text| filled(text, &config.namespace).into());
        Self { config: config.clone(), prepared }
    }

    pub(super) fn prepared(&self, which: usize) -> Query {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.prepared[which])))
    }

    pub(super) fn rare(&self, text: &str) -> Query {
        sqlx::query(AssertSqlSafe(filled(text, &self.config.namespace)))
    }

    pub(super) async fn session(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.config).await?;
        let begin = async {
            raw::<()>(&mut conn, include_str!("sql/settings.sql")).await?;
            let sql = filled(include_str!("sql/begin.sql"), &self.config.namespace);
            let begun: (bool, i32, i64) = raw(&mut conn, sql).await?;
            // What every lock asks for takes one round trip from the first time on.
            for sql in &self.prepared {
                conn.prepare(AssertSqlSafe(Arc::clone(sql)).into_sql_str()).await?;
            }
            Ok(begun)
        };
        let (standby, pid, born) = unharmed(begin).await.map_err(|error| self.explained(error))?;
        if standby {
            return Err(Error::new(ErrorKind::Unavailable, "the server takes no writes: is it a standby?"));
        }
        Ok((Conn { conn, pid, epoch: TokenEpoch::default() }, Id { process: pid.into(), born }))
    }

    pub(super) fn explained(&self, error: sqlx::Error) -> Error {
        // By somebody's order, or for having been idle.
        if matches!(state(&error).as_deref(), Some("57P01" | "57P05")) {
            return Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(error);
        }
        let schema = &self.config.namespace;
        denied(
            error,
            &format!(
                "USAGE on schema {schema} and on sequence {schema}.number, EXECUTE on function \
                 {schema}.begin_session, and the role of the session that is to be ended"
            ),
        )
    }
}

fn filled(text: &str, schema: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("--")).collect();
    let text = lines.join("\n").replace("{holders}", include_str!("sql/of_key.sql").trim_end());
    text.replace("{schema}", &format!("\"{schema}\""))
}

/// A connection, and the server's process at its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) conn: PgConnection,
    pid: i32,
    /// The largest that it has begun.
    pub(super) epoch: TokenEpoch,
}

impl Conn {
    /// The lock belongs to the session: another one, by a pooler, is not ours.
    pub(super) fn answered(&self, process: i32) -> Result<()> {
        if process == self.pid { Ok(()) } else { Err(pooled()) }
    }
}

pub(super) fn pooled() -> Error {
    let text = "behind a pooler that gives each transaction another session there are no session locks; use a \
                direct connection, or postgres://";
    Error::new(ErrorKind::Unsupported, text)
}
