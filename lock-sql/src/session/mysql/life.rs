//! Numbers that never go back, without a commit for each.
//!
//! `UUID_SHORT()` counts in the server's memory and belongs to nobody: a later call gets more, as long as the server lives.
//! The table keeps what was added to it in this life, and a ceiling: a number counts only when a ceiling above it is on the
//! disk, and a new life begins above the ceiling. A commit for a million numbers.
//!
//! The high bits of both are the token epoch. Who begins a larger one also takes the counter past the old ceiling: so who
//! knows only that has to ask the table, before it gives one more number, and is refused.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Executor as _, SqlSafeStr as _};

use super::MySql;
use super::asking::{BEAT, Conn, GIVE, TAKE};
use super::words::{ended, get};
use crate::mysql::error::{explain, is_missing_table, number};
use crate::mysql::pool::run;
use crate::mysql::sql::Value;
use crate::session::names::life;
use crate::session::sessions::strange;
use crate::unharmed::{legible, unharmed};

/// What every session sets.
const SETTINGS: &str = include_str!("../../mysql/sql/session.sql");

/// How far the ceiling is raised at a time.
const BLOCK: i64 = 1 << 20;

/// For how many seconds a statement waits for rows and tables. The transactions here are short.
const LOCK_WAIT: i64 = 5;

/// How long a server may take to be up for a second. A life is known by the second in which it began, and so is its
/// counter: a life that gives numbers only later than that shares it with no other that does.
const YOUNG: Duration = Duration::from_secs(5);

/// The version of the table that this program knows.
const VERSION: i64 = 1;

/// What a session knows of its server's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) id: i64,
    /// What is added to the server's counter.
    pub(super) shift: i64,
    /// Above all numbers that may be given; on the disk.
    ceiling: i64,
}

impl Life {
    /// The token epoch of the numbers.
    pub(super) fn epoch(&self) -> TokenEpoch {
        TokenEpoch::of(self.ceiling)
    }

    /// Whether a ceiling above this number is on the disk.
    pub(super) fn covers(&self, number: i64) -> bool {
        number < self.ceiling
    }
}

impl MySql {
    /// Makes a connection a session of ours.
    pub(super) async fn set_up(&self, mut conn: MySqlConnection) -> Result<Conn> {
        let (limit, uptime) = if self.mariadb {
            ("max_statement_time", "information_schema.GLOBAL_STATUS")
        } else {
            ("max_execution_time", "performance_schema.global_status")
        };
        self.rows(&mut conn, SETTINGS, &[("lock_wait", Value::Int(LOCK_WAIT))]).await?;
        let values = [("limit", Value::Part(limit)), ("uptime", Value::Part(uptime))];
        let end = Instant::now() + YOUNG;
        // By the client's clock: the server's `SLEEP` is by a clock that may be stepped.
        let (session, this) = loop {
            let read = |row: &MySqlRow| Ok((get(row, 0)?, get::<Vec<u8>>(row, 1)?, get::<i64>(row, 2)?));
            let set_up = self.first(&mut conn, include_str!("sql/set_up.sql"), &values, read);
            let (session, text, up) = set_up.await?.ok_or_else(strange)?;
            if up >= 1 {
                break (session, life(&text));
            }
            if Instant::now() > end {
                let text = "the server says that it has been up for no second yet";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // What this client read before is on the disk, and it needs no commit. Another life may have taken over in between, and this
        // one begun again, so the table is asked.
        let known = *self.known();
        let table = self.table(&mut conn, include_str!("sql/again.sql"), this, &[]).await?;
        let life = match (known, table) {
            (Some(known), Some(now))
                if (known.id, known.shift) == (this, now.shift) && known.ceiling <= now.ceiling =>
            {
                known
            }
            _ => self.learn(&mut conn, include_str!("sql/begin.sql"), this, &[]).await?,
        };
        // What every lock asks for takes one round trip from the first time on.
        for sql in [TAKE, GIVE, BEAT] {
            unharmed(conn.prepare(sql.into_sql_str())).await.map_err(ended)?;
        }
        Ok(Conn { conn, id: session, life })
    }

    fn known(&self) -> MutexGuard<'_, Option<Life>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the table says of this life, unless it belongs to another.
    async fn table(
        &self,
        conn: &mut MySqlConnection,
        text: &'static str,
        id: i64,
        values: &[(&str, Value<'_>)],
    ) -> Result<Option<Life>> {
        let values = [&[("life", Value::Int(id)), ("block", Value::Int(BLOCK))], values].concat();
        let read = |row: &MySqlRow| Ok(Life { id, shift: get(row, 0)?, ceiling: get(row, 1)? });
        self.first(conn, text, &values, read).await
    }

    /// The same from a request after which it is on the disk.
    async fn learn(
        &self,
        conn: &mut MySqlConnection,
        text: &'static str,
        id: i64,
        values: &[(&str, Value<'_>)],
    ) -> Result<Life> {
        let life = self.table(conn, text, id, values).await?.ok_or_else(taken_over)?;
        *self.known() = Some(life);
        Ok(life)
    }

    /// Sees to it that numbers are of this token epoch at least.
    pub(super) async fn begin_epoch(&self, conn: &mut Conn, epoch: TokenEpoch) -> Result<()> {
        let high = [("high", Value::Int(i64::from(u16::from(epoch)) << 48))];
        let begin = self.learn(&mut conn.conn, include_str!("sql/epoch.sql"), conn.life.id, &high);
        conn.life = begin.await?;
        Ok(())
    }

    /// Sees to it that a ceiling above `number` is on the disk.
    pub(super) async fn cover(&self, conn: &mut Conn, number: i64) -> Result<()> {
        let values = [("shift", Value::Int(conn.life.shift)), ("number", Value::Int(number))];
        let raise = self.table(&mut conn.conn, include_str!("sql/raise.sql"), conn.life.id, &values);
        let now = raise.await?.ok_or_else(taken_over)?;
        conn.life.epoch().check(now.epoch())?;
        if now.shift != conn.life.shift {
            return Err(taken_over());
        }
        if !now.covers(number) {
            return Err(strange());
        }
        conn.life = now;
        *self.known() = Some(now);
        Ok(())
    }

    /// Makes sure that the table is there, of the version this program knows. What keeps its locks apart from others.
    pub(super) async fn ensure(&self, conn: &mut MySqlConnection) -> Result<String> {
        // The server's default may be that nothing is committed.
        self.rows(conn, SETTINGS, &[("lock_wait", Value::Int(LOCK_WAIT))]).await?;
        if let Some(space) = self.space(conn).await? {
            return Ok(space);
        }
        let migration =
            self.rows(conn, include_str!("../../../migrations/mysql_session/0001.sql"), &[]).await;
        migration.map_err(|error| {
            if error.kind() != ErrorKind::Denied {
                return error;
            }
            let text = format!(
                "the table `{0}session` is missing or this user has no right on it, and it may not make it: let an \
                 administrator run migrations/mysql_session/0001.sql and grant SELECT and UPDATE on it ({error})",
                self.prefix
            );
            Error::new(ErrorKind::Denied, text).caused_by(error)
        })?;
        let missing =
            || Error::new(ErrorKind::Foreign, "the table of session locks is there, but not its row");
        self.space(conn).await?.ok_or_else(missing)
    }

    async fn space(&self, conn: &mut MySqlConnection) -> Result<Option<String>> {
        let table = format!("{}session", self.prefix);
        let list = [("tables", Value::Bytes(table.as_bytes()))];
        let tables = include_str!("../../mysql/sql/tables.sql");
        let engine = self.first(conn, tables, &list, |row| get::<Vec<u8>>(row, 1)).await?;
        if engine.is_some_and(|engine| engine != b"InnoDB") {
            let text = format!("`{table}` is not on InnoDB: it is not the table of onelock's session locks");
            return Err(Error::new(ErrorKind::Foreign, text));
        }
        // Of a table that one may not see, servers do not say whether it is there.
        let denied = |error: &sqlx::Error| is_missing_table(error) || number(error) == Some(1142);
        let rows = match unharmed(run(conn, self.text(include_str!("sql/table.sql"), &[]))).await {
            Err(error) if denied(&error) => return Ok(None),
            rows => rows.map_err(explain)?,
        };
        let Some(row) = rows.first() else { return Ok(None) };
        let (version, space) = legible(|| Ok((get::<i64>(row, 0)?, get::<Vec<u8>>(row, 1)?)))?;
        if version != VERSION {
            let text = format!("`{table}` is of version {version}, this program knows {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Some(hex::encode(space)))
    }
}

/// Another server counts, or has counted, and this one does not know.
fn taken_over() -> Error {
    Error::new(ErrorKind::Unavailable, "the table belongs to another server by now")
}
