//! Numbers that never go back, without a commit for each.
//!
//! `UUID_SHORT()` counts in the server's memory and belongs to nobody: a later call gets more, as long as the server lives.
//! The table keeps what was added to it in this life, and a ceiling: a number counts only when a ceiling above it is on the
//! disk, and a new life begins above the ceiling. A commit for a million numbers.
//!
//! The high bits of both are the token epoch. Who begins a larger one also takes the counter past the old ceiling: so who
//! knows only that has to ask the table, before it gives one more number, and is refused.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor as _, SqlSafeStr as _};

use super::MySql;
use super::asking::{BEAT, Conn, GIVE, TAKE};
use super::words::{bytes, ended, int, strange};
use crate::mysql::MySqlConfig;
use crate::mysql::error::{explain, is_missing_table, number};
use crate::mysql::pool::run;
use crate::mysql::sql::{Template, Value};
use crate::session::names::life;
use crate::unharmed::{legible, unharmed};

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

/// What this client last read about a life of its server, and is on that server's disk.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Option<Life>>);

impl Known {
    /// What is known of this life, if the table says nothing else.
    fn again(&self, id: i64, shift: i64, ceiling: i64) -> Option<Life> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|known| known.id == id && known.shift == shift && known.ceiling <= ceiling)
    }

    fn learn(&self, life: Life) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(life);
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
        let settings = self.sql.settings.fill(&[("lock_wait", Value::Int(LOCK_WAIT))]);
        let values = [("limit", Value::Part(limit)), ("uptime", Value::Part(uptime))];
        let set_up = settings + &self.sql.set_up.fill(&values);
        let end = Instant::now() + YOUNG;
        let (session, this) = loop {
            let rows = unharmed(run(&mut conn, set_up.as_str())).await.map_err(ended)?;
            let [row] = &rows[..] else { return Err(strange()) };
            let (session, text, up) = legible(|| Ok((int(row, 0)?, bytes(row, 1)?, int(row, 2)?)))?;
            if up >= 1 {
                break (session, life(&text));
            }
            if Instant::now() > end {
                let text = "the server says that it has been up for no second yet";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let life = match self.again(&mut conn, this).await? {
            Some(life) => life,
            None => self.begin(&mut conn, this).await?,
        };
        // What every lock asks for takes one round trip from the first time on.
        for sql in [TAKE, GIVE, BEAT] {
            unharmed(conn.prepare(sql.into_sql_str())).await.map_err(ended)?;
        }
        Ok(Conn { conn, id: session, life })
    }

    /// What this client knows of this life, without a commit: what it read before is on the disk. Another life may have taken
    /// over in between, and this one begun again, so the table is asked.
    async fn again(&self, conn: &mut MySqlConnection, this: i64) -> Result<Option<Life>> {
        let rows = unharmed(run(conn, self.sql.again.fill(&[("life", Value::Int(this))]))).await;
        let [row] = &rows.map_err(ended)?[..] else { return Ok(None) };
        let (shift, ceiling) = legible(|| Ok((int(row, 0)?, int(row, 1)?)))?;
        Ok(self.known.again(this, shift, ceiling))
    }

    async fn begin(&self, conn: &mut MySqlConnection, this: i64) -> Result<Life> {
        let values = [("life", Value::Int(this)), ("block", Value::Int(BLOCK))];
        let rows = unharmed(run(conn, self.sql.begin.fill(&values))).await.map_err(ended)?;
        let [row] = &rows[..] else { return Err(strange()) };
        let (shift, ceiling) = legible(|| Ok((int(row, 0)?, int(row, 1)?)))?;
        let life = Life { id: this, shift, ceiling };
        self.known.learn(life);
        Ok(life)
    }

    /// Sees to it that numbers are of this token epoch at least.
    pub(super) async fn begin_epoch(&self, conn: &mut Conn, epoch: TokenEpoch) -> Result<()> {
        let sql = self.sql.epoch.fill(&[
            ("life", Value::Int(conn.life.id)),
            ("high", Value::Int(i64::from(u16::from(epoch)) << 48)),
            ("block", Value::Int(BLOCK)),
        ]);
        conn.life = Self::now(conn, sql).await?;
        self.known.learn(conn.life);
        Ok(())
    }

    /// What the table says of this life of the server.
    async fn now(conn: &mut Conn, sql: String) -> Result<Life> {
        let rows = unharmed(run(&mut conn.conn, sql)).await.map_err(explain)?;
        match &rows[..] {
            [row] => legible(|| Ok(Life { id: conn.life.id, shift: int(row, 0)?, ceiling: int(row, 1)? })),
            _ => Err(taken_over()),
        }
    }

    /// Sees to it that a ceiling above `number` is on the disk.
    pub(super) async fn cover(&self, conn: &mut Conn, number: i64) -> Result<()> {
        let sql = self.sql.raise.fill(&[
            ("life", Value::Int(conn.life.id)),
            ("shift", Value::Int(conn.life.shift)),
            ("number", Value::Int(number)),
            ("block", Value::Int(BLOCK)),
        ]);
        let now = Self::now(conn, sql).await?;
        conn.life.epoch().check(now.epoch())?;
        if now.shift != conn.life.shift {
            return Err(taken_over());
        }
        if !now.covers(number) {
            return Err(strange());
        }
        conn.life = now;
        self.known.learn(now);
        Ok(())
    }
}

/// Another server counts, or has counted, and this one does not know.
fn taken_over() -> Error {
    Error::new(ErrorKind::Unavailable, "the table belongs to another server by now")
}

/// Makes sure that the table is there, of the version this program knows. What keeps its locks apart from others.
pub(super) async fn ensure(conn: &mut MySqlConnection, config: &MySqlConfig) -> Result<String> {
    // The server's default may be that nothing is committed.
    let settings = Template::new(include_str!("../../mysql/sql/session.sql"), &config.namespace);
    unharmed(run(conn, settings.fill(&[("lock_wait", Value::Int(LOCK_WAIT))]))).await.map_err(explain)?;
    if let Some(space) = space(conn, config).await? {
        return Ok(space);
    }
    let migration =
        Template::new(include_str!("../../../migrations/mysql_session/0001.sql"), &config.namespace);
    if let Err(error) = unharmed(run(conn, migration.fill(&[]))).await {
        let error = explain(error);
        if error.kind() != ErrorKind::Denied {
            return Err(error);
        }
        let text = format!(
            "the table `{0}session` is missing or this user has no right on it, and it may not make it: let an \
             administrator run migrations/mysql_session/0001.sql and grant SELECT and UPDATE on it ({error})",
            config.namespace
        );
        return Err(Error::new(ErrorKind::Denied, text).caused_by(error));
    }
    let missing = || Error::new(ErrorKind::Foreign, "the table of session locks is there, but not its row");
    space(conn, config).await?.ok_or_else(missing)
}

async fn space(conn: &mut MySqlConnection, config: &MySqlConfig) -> Result<Option<String>> {
    let table = format!("{}session", config.namespace);
    let engine = Template::new(include_str!("../../mysql/sql/tables.sql"), &config.namespace);
    let list = [("tables", Value::Bytes(table.as_bytes()))];
    let rows = unharmed(run(conn, engine.fill(&list))).await.map_err(explain)?;
    if let Some(row) = rows.first() {
        let engine = legible(|| bytes(row, 1))?;
        if engine != b"InnoDB" {
            let text = format!("`{table}` is not on InnoDB: it is not the table of onelock's session locks");
            return Err(Error::new(ErrorKind::Foreign, text));
        }
    }
    let sql = Template::new(include_str!("sql/table.sql"), &config.namespace).fill(&[]);
    // Of a table that one may not see, servers do not say whether it is there.
    let rows = match unharmed(run(conn, sql)).await {
        Ok(rows) => rows,
        Err(error) if is_missing_table(&error) || number(&error) == Some(1142) => return Ok(None),
        Err(error) => return Err(explain(error)),
    };
    let Some(row) = rows.first() else { return Ok(None) };
    let (version, space) = legible(|| Ok((int(row, 0)?, bytes(row, 1)?)))?;
    if version != VERSION {
        let text = format!("`{table}` is of version {version}, this program knows {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(Some(hex::encode(space)))
}
