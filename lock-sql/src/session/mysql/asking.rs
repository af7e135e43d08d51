//! What a session is asked, and what its answers mean.

use std::time::Duration;

use onelock_core::{Capabilities, EntryView, Error, ErrorKind, FencingToken, Result};
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;

use super::life::Life;
use super::words::{ended, int, maybe, proxied, seconds, strange};
use super::{ENDLESS, MySql};
use crate::mysql::error::number;
use crate::mysql::pool::run;
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::Key;
use crate::unharmed::{legible, unharmed};

pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const GIVE: &str = include_str!("sql/give.sql");
pub(super) const BEAT: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

/// A connection, and the session at its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) conn: MySqlConnection,
    pub(super) id: i64,
    pub(super) life: Life,
}

impl MySql {
    /// A prepared statement, which the server has read before: reading one costs it more than taking a lock. One row.
    async fn quick<T: Send>(
        conn: &mut Conn,
        query: Query<'_, sqlx::MySql, MySqlArguments>,
        read: impl FnOnce(&MySqlRow) -> Result<T> + Send,
    ) -> Result<T> {
        // Not as a stream of rows: the driver's takes more instructions, and the answer has one.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await.map_err(ended)?.ok_or_else(strange)?;
        legible(|| {
            // The lock belongs to the session: another one, by a proxy, is not ours.
            if int(&row, 0)? == conn.id { read(&row) } else { Err(proxied()) }
        })
    }

    /// How long the server lets the session be idle from now on.
    async fn set_idle(conn: &mut Conn, idle: Duration) -> Result<()> {
        let sql = format!("SET SESSION wait_timeout = {}", seconds(idle));
        unharmed(run(&mut conn.conn, sql)).await.map(drop).map_err(ended)
    }

    async fn give(conn: &mut Conn, key: &Key) -> Result<Answer> {
        let query = sqlx::query(GIVE).bind(hex::encode(key.long()));
        Ok(Answer::Done(Self::quick(conn, query, |row| int(row, 1)).await? == 1))
    }

    async fn take(&self, conn: &mut Conn, wish: &Wish, wait: bool) -> Result<Answer> {
        if wish.epoch > conn.life.epoch() {
            Box::pin(self.begin_epoch(conn, wish.epoch)).await?;
        }
        wish.epoch.check(conn.life.epoch())?;
        let shift = conn.life.shift;
        let query = sqlx::query(TAKE).bind(wish.tag.as_str()).bind(hex::encode(wish.key.long()));
        let query = query.bind(if wait { ENDLESS } else { 0 }).bind(shift);
        let Some(number) = Self::quick(conn, query, |row| maybe(row, 1)).await? else {
            return Ok(Answer::Taken(None));
        };
        let token = FencingToken::new(number)?;
        // Held, but not granted before a crash cannot bring the number back.
        if !conn.life.covers(number)
            && let Err(error) = Box::pin(self.cover(conn, number)).await
        {
            // A larger token epoch has begun: others need not wait for the end of the connection.
            if error.kind() == ErrorKind::InvalidConfig {
                Box::pin(Self::give(conn, &wish.key)).await?;
            }
            return Err(error);
        }
        Ok(Answer::Taken(Some(token)))
    }
}

impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;

    async fn connect(&self) -> Result<Conn> {
        self.session_within(self.request_timeout).await
    }

    fn id(conn: &Conn) -> Id {
        Id { process: conn.id, born: conn.life.id }
    }

    fn is_full(error: &Error) -> bool {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
        matches!(source.and_then(number), Some(1040 | 1203 | 1226))
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask, idle: Option<Duration>) -> Result<Answer> {
        if let Some(idle) = idle {
            Box::pin(Self::set_idle(conn, idle)).await?;
        }
        match ask {
            Ask::Take(wish, wait) => self.take(conn, wish, *wait).await,
            Ask::Give(wish) => Self::give(conn, &wish.key).await,
            Ask::Beat(_) if idle.is_some() => Ok(Answer::Done(true)),
            Ask::Beat(_) => Self::quick(conn, sqlx::query(BEAT), |_| Ok(Answer::Done(true))).await,
        }
    }

    async fn waiting(&self, conn: &mut Conn, processes: &[i64]) -> Result<Vec<i64>> {
        self.those_waiting(conn, processes).await
    }

    async fn holders(&self, conn: &mut Conn, key: &Key) -> Result<Vec<EntryView>> {
        self.view(conn, key).await
    }

    async fn end(&self, conn: &mut Conn, whose: &Whose) -> Result<bool> {
        self.kill(conn, whose).await
    }
}
