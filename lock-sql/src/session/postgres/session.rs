//! A session of the server: how it is made, what is set in it first, and what its end means.

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};

use crate::postgres::PostgresConfig;
use crate::postgres::connect::{connect, raw};
use crate::postgres::error::{denied, state};
use crate::session::dialect::Id;
use crate::session::sessions::moved;
use crate::unharmed::unharmed;

pub(super) type Query = sqlx::query::Query<'static, sqlx::Postgres, PgArguments>;

/// What every lock asks for. In a session's name stands what it holds: `onelock <number> <tag> <note>`.
pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const BEAT: &str = include_str!("sql/beat.sql");
pub(super) const GIVE: &str = include_str!("sql/give.sql");

#[derive(Debug)]
pub(super) struct Postgres {
    pub(super) config: PostgresConfig,
}

impl Postgres {
    pub(super) fn query(&self, text: &str) -> Query {
        sqlx::query(self.filled(text))
    }

    fn filled(&self, text: &str) -> AssertSqlSafe<String> {
        let text = text.replace("{holders}", include_str!("sql/of_key.sql").trim_end());
        AssertSqlSafe(text.replace("{schema}", &format!("\"{}\"", self.config.namespace)))
    }

    pub(super) async fn session(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.config).await?;
        let begin = async {
            raw::<()>(&mut conn, include_str!("sql/settings.sql")).await?;
            let begun: (bool, i32, i64) =
                raw(&mut conn, self.filled(include_str!("sql/begin.sql")).0).await?;
            // What every lock asks for takes one round trip from the first time on.
            for text in [TAKE, BEAT, GIVE] {
                conn.prepare(self.filled(text).into_sql_str()).await?;
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
        if process == self.pid { Ok(()) } else { Err(moved("postgres")) }
    }
}
