//! What a session is asked and what its answers mean; looking at other sessions, and ending them.

use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Capabilities, EntryView, Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;

use super::session::{BEAT, Conn, GIVE, MySql, TAKE, ended};
use crate::mysql::connect::{only_on_a_primary, send};
use crate::mysql::error::{fault, number};
use crate::mysql::sql::{Value, fill};
use crate::pool::{self, Fault};
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::{Key, tag};
use crate::unharmed::unharmed;

/// Reads who holds a lock.
const HOLDER: &str = include_str!("sql/holder.sql");

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

/// As good as no limit for a wait: a year, the longest the server takes.
const ENDLESS: i64 = 31_536_000;

impl MySql {
    /// A prepared statement, which the server has read before: reading one costs it more than taking a lock. One row: the session,
    /// and a number.
    async fn quick(conn: &mut Conn, query: Query<'_, sqlx::MySql, MySqlArguments>) -> Result<Answer> {
        // Not as a stream of rows: the driver's takes more instructions, and the answer has one.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await.map_err(ended)?;
        match pool::Answer::new(row.into_iter().collect(), 0).one()? {
            (_, Some(..0)) => Err(Error::new(ErrorKind::Unavailable, "the server is read-only")),
            answer => Ok(answer),
        }
    }

    async fn give(conn: &mut Conn, key: &Key) -> Result<Answer> {
        let (session, given) = Self::quick(conn, sqlx::query(GIVE).bind(hex::encode(key))).await?;
        Ok((session, given.filter(|given| *given == 1)))
    }
}

#[async_trait]
impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;
    const FAULT: fn(&sqlx::Error) -> Fault = fault;

    async fn connect(&self) -> Result<(Conn, Id)> {
        self.session().await
    }

    async fn ask(&self, conn: &mut Conn, wish: &Wish, ask: Ask, idle: Option<Duration>) -> Result<Answer> {
        if let Some(idle) = idle {
            // How long the server lets the session be idle from now on.
            let sql = format!("SET SESSION wait_timeout = {}", seconds(idle));
            Box::pin(unharmed(send(&mut conn.conn, sql))).await.map_err(ended)?;
        }
        let wait = match ask {
            Ask::Take => 0,
            Ask::Queue => ENDLESS,
            Ask::Beat(_) => return Self::quick(conn, sqlx::query(BEAT)).await,
            Ask::Give => return Self::give(conn, &wish.key).await,
        };
        let epoch = wish.request.epoch;
        if epoch > conn.life.epoch() {
            Box::pin(self.begin_epoch(conn, epoch)).await?;
        }
        epoch.check(conn.life.epoch())?;
        let take = sqlx::query(TAKE).bind(hex::encode(wish.key)).bind(wait).bind(conn.life.shift);
        let taken = Self::quick(conn, take.bind(tag(wish.request.holder))).await?;
        // Held, but not granted before a crash cannot bring the number back.
        if let (_, Some(number)) = taken
            && number >= conn.life.ceiling
            && let Err(error) = Box::pin(self.cover(conn, number, epoch)).await
        {
            // A larger token epoch has begun: others need not wait for the end of the connection.
            if error.kind() == ErrorKind::InvalidConfig {
                Box::pin(Self::give(conn, &wish.key)).await?;
            }
            return Err(error);
        }
        Ok(taken)
    }

    async fn waiting(&self, conn: &mut Conn, some: Vec<(Id, Key)>) -> Result<Vec<Id>> {
        let born = conn.life.id;
        // Another server, and another life of this one, has other sessions of these numbers.
        let here = some.iter().filter(|(id, _)| id.born == born);
        let asked = here.map(|(id, key)| format!(" UNION ALL SELECT {}, '{}'", id.process, hex::encode(key)));
        let asked = [("asked", Value::Part(asked.collect()))];
        let waiting = self.request(&mut conn.conn, include_str!("sql/waiting.sql"), &asked).await;
        let waiting = waiting.map_err(ended)?.all()?;
        Ok(waiting.into_iter().map(|(process,)| Id { process, born }).collect())
    }

    async fn holders(&self, conn: &mut Conn, key: Key) -> Result<Vec<EntryView>> {
        let mut before = None;
        for _ in 0..LOOKS {
            let seen = self.request(&mut conn.conn, HOLDER, &[("key", Value::Digest(key))]).await;
            let seen: (Option<i64>, Option<i64>, Option<Vec<u8>>) = seen.map_err(ended)?.one()?;
            match &seen {
                (None, ..) => return Ok(Vec::new()),
                (_, Some(number), Some(whose)) if before.as_ref() == Some(&seen) => {
                    let note = String::from_utf8_lossy(whose);
                    return Ok(vec![EntryView::new(FencingToken::new(*number)?, Mode::Exclusive, note)]);
                }
                _ => before = Some(seen),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock changes hands faster than it can be looked at"))
    }

    async fn end(&self, conn: &mut Conn, whose: Whose) -> Result<bool> {
        // The server finds the session and ends it in one request: an answer that arrives altered must not end another one.
        let holder = |text, key, which| {
            let (table, key) = (&self.config.namespace, ("key", Value::Digest(key)));
            let held = ("held", Value::Part(fill(HOLDER, table, std::slice::from_ref(&key))));
            only_on_a_primary() + &fill(text, table, &[key, held, ("which", which)])
        };
        let sql = match whose {
            // What belongs to another life of the server has ended with it.
            Whose::Session(id) if id.born != conn.life.id => return Ok(false),
            Whose::Session(id) => format!("KILL {}", id.process),
            Whose::Numbered(key, token) => {
                holder(include_str!("sql/evict.sql"), key, Value::Int(token.get()))
            }
            Whose::Of(key, tag) => holder(include_str!("sql/end_of.sql"), key, Value::Part(tag)),
        };
        match unharmed(send(&mut conn.conn, sql)).await {
            Ok(_) => Ok(true),
            // There is none.
            Err(error) if number(&error) == Some(1094) => Ok(false),
            Err(error) => Err(ended(error)),
        }
    }
}

/// How long a session may be idle, in whole seconds, never less than asked, and never no time, which the server would refuse.
fn seconds(idle: Duration) -> u128 {
    idle.as_nanos().div_ceil(1_000_000_000).clamp(1, ENDLESS.unsigned_abs().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_becomes_shorter() {
        let secs = Duration::from_secs;
        assert_eq!([seconds(Duration::from_nanos(1)), seconds(secs(3))], [1, 3]);
        assert_eq!(seconds(secs(3) + Duration::from_millis(1)), 4);
        assert_eq!(seconds(Duration::ZERO), 1);
    }

    #[test]
    fn a_key_is_as_long_as_a_name_may_be() {
        let name = onelock_core::LockName::new("orders/42").unwrap();
        let key = crate::session::names::key("space", &name);
        let mut text = String::new();
        Value::Digest(key).write(&mut text);
        let name = text.trim_matches('\'');
        assert!(name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()));
        assert!(text.starts_with(&format!("'{:016x}", crate::session::names::short(&key))));
    }
}
