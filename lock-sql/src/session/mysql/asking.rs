//! What a session is asked and what its answers mean; looking at other sessions, and ending them.

use std::time::Duration;

use onelock_core::{Capabilities, EntryView, Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;

use super::session::{BEAT, Conn, GIVE, MySql, TAKE};
use super::words::{ENDLESS, ended, seconds};
use crate::mysql::connect::{only_on_a_primary, send};
use crate::mysql::error::{fault, number};
use crate::mysql::sql::{Value, fill};
use crate::pool::{self, Fault};
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::{Key, tag};
use crate::session::sessions::moved;
use crate::unharmed::unharmed;

/// Reads who holds a lock.
const HOLDER: &str = include_str!("sql/holder.sql");

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

impl MySql {
    /// A prepared statement, which the server has read before: reading one costs it more than taking a lock. One row: the session,
    /// and a number.
    async fn quick(conn: &mut Conn, query: Query<'_, sqlx::MySql, MySqlArguments>) -> Result<Option<i64>> {
        // Not as a stream of rows: the driver's takes more instructions, and the answer has one.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await.map_err(ended)?;
        let (session, number): (i64, _) = pool::Answer::new(row.into_iter().collect(), 0).one()?;
        match number {
            // The lock belongs to the session: another one, by a proxy, is not ours.
            _ if session != conn.id => Err(moved("mysql")),
            Some(..0) => Err(Error::new(ErrorKind::Unavailable, "the server is read-only")),
            number => Ok(number),
        }
    }

    async fn give(conn: &mut Conn, key: &Key) -> Result<Answer> {
        let query = sqlx::query(GIVE).bind(hex::encode(key.long()));
        Ok(Answer::Done(Self::quick(conn, query).await? == Some(1)))
    }

    async fn take(&self, conn: &mut Conn, wish: &Wish, wait: bool) -> Result<Answer> {
        if wish.request.epoch > conn.life.epoch() {
            Box::pin(self.begin_epoch(conn, wish.request.epoch)).await?;
        }
        wish.request.epoch.check(conn.life.epoch())?;
        let shift = conn.life.shift;
        let query = sqlx::query(TAKE).bind(hex::encode(wish.key.long())).bind(if wait { ENDLESS } else { 0 });
        let query = query.bind(shift).bind(tag(wish.request.holder));
        let Some(number) = Self::quick(conn, query).await? else {
            return Ok(Answer::Taken(None));
        };
        let token = FencingToken::new(number)?;
        // Held, but not granted before a crash cannot bring the number back.
        if number >= conn.life.ceiling
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

    /// The session that holds the lock, and the number it says it has, as far as it does.
    async fn holder(&self, conn: &mut Conn, key: &Key) -> Result<Option<(i64, Option<i64>)>> {
        let key = [("key", Value::Digest(*key.long()))];
        let seen = self.rows(&mut conn.conn, HOLDER, &key).await?.pop();
        Ok(seen.and_then(|(holder, number): (Option<i64>, _)| Some((holder?, number))))
    }

    /// Those of these sessions that are there: which, whether it waits for its lock, and whose it is.
    async fn sessions(&self, conn: &mut Conn, some: &[(Id, Key)]) -> Result<Vec<(i64, i64, Vec<u8>)>> {
        let here = |id: &Id| id.born == conn.life.id;
        let asked = some.iter().map(|(id, key)| {
            format!(
                "SELECT {} AS session, '{}' AS name, {} AS here",
                id.process,
                hex::encode(key.long()),
                here(id)
            )
        });
        let asked = [("asked", Value::Part(asked.collect::<Vec<_>>().join(" UNION ALL ")))];
        self.rows(&mut conn.conn, include_str!("sql/sessions.sql"), &asked).await
    }
}

impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;

    async fn connect(&self) -> Result<(Conn, Id)> {
        self.session().await
    }

    fn fault(error: &sqlx::Error) -> Fault {
        fault(error)
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask, idle: Option<Duration>) -> Result<Answer> {
        if let Some(idle) = idle {
            // How long the server lets the session be idle from now on.
            let sql = format!("SET SESSION wait_timeout = {}", seconds(idle));
            Box::pin(unharmed(send(&mut conn.conn, sql))).await.map_err(ended)?;
        }
        match ask {
            Ask::Take(wish, wait) => self.take(conn, wish, *wait).await,
            Ask::Give(wish) => Self::give(conn, &wish.key).await,
            Ask::Beat(_) => Self::quick(conn, sqlx::query(BEAT)).await.map(|_| Answer::Done(true)),
        }
    }

    async fn waiting(&self, conn: &mut Conn, some: Vec<(Id, Key)>) -> Result<Vec<Id>> {
        let waiting = self.sessions(conn, &some).await?.into_iter().filter(|(_, waits, _)| *waits == 1);
        Ok(waiting.map(|(process, ..)| Id { process, born: conn.life.id }).collect())
    }

    async fn holders(&self, conn: &mut Conn, key: Key) -> Result<Vec<EntryView>> {
        let mut before = None;
        for _ in 0..LOOKS {
            let Some(seen) = self.holder(conn, &key).await? else { return Ok(Vec::new()) };
            if let (holder, Some(number)) = seen
                && before.replace(seen) == Some(seen)
            {
                // Without the right to see sessions of other users the server shows the id alone.
                let holds = (Id { process: holder, born: conn.life.id }, key);
                let whose = self.sessions(conn, &[holds]).await?.pop().map(|(.., whose)| whose);
                let whose = whose.unwrap_or_else(|| format!("session {holder}").into_bytes());
                let note = String::from_utf8_lossy(&whose);
                return Ok(vec![EntryView::new(FencingToken::new(number)?, Mode::Exclusive, note)]);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock changes hands faster than it can be looked at"))
    }

    async fn end(&self, conn: &mut Conn, whose: Whose) -> Result<bool> {
        // The server finds the session and ends it in one request: an answer that arrives altered must not end another one.
        let fill = |text, values: &[_]| fill(text, &self.config.namespace, values);
        let sql = match whose {
            // What belongs to another life of the server has ended with it.
            Whose::Session(id) if id.born != conn.life.id => return Ok(false),
            Whose::Session(id) => format!("KILL {}", id.process),
            Whose::Numbered(key, token) => {
                let held = fill(HOLDER, &[("key", Value::Digest(*key.long()))]);
                let values = [("held", Value::Part(held)), ("token", Value::Int(token.get()))];
                only_on_a_primary() + &fill(include_str!("sql/evict.sql"), &values)
            }
            Whose::Of(key, tag) => {
                let values = [("key", Value::Digest(*key.long())), ("tag", Value::Part(tag))];
                only_on_a_primary() + &fill(include_str!("sql/end_of.sql"), &values)
            }
        };
        match unharmed(send(&mut conn.conn, sql)).await {
            Ok(_) => Ok(true),
            // There is none.
            Err(error) if number(&error) == Some(1094) => Ok(false),
            Err(error) => Err(ended(error)),
        }
    }
}
