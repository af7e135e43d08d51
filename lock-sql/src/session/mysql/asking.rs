//! What a session is asked and what its answers mean; looking at other sessions, and ending them.
//!
//! Numbers that never go back, without a commit for each.
//!
//! `UUID_SHORT()` counts in the server's memory and belongs to nobody: a later call gets more, as long as the server lives.
//! The table keeps what was added to it in this life, and a ceiling: a number counts only when a ceiling above it is on the
//! disk, and a new life begins above the ceiling. A commit for a million numbers.
//!
//! The high bits of both are the token epoch. Who begins a larger one also takes the counter past the old ceiling: so who
//! knows only that has to ask the table, before it gives one more number, and is refused.

use std::time::Duration;

use async_trait::async_trait;
use onelock_core::toolkit::Mutex;
use onelock_core::{Capabilities, EntryView, Error, ErrorKind, FencingToken, Mode, Result, TokenEpoch};
use sha2::{Digest as _, Sha256};
use sqlx::mysql::{MySqlArguments, MySqlConnection};
use sqlx::query::Query;
use sqlx::{Executor as _, SqlSafeStr as _};

use crate::mysql::MySqlConfig;
use crate::mysql::connect::{Sent, connect, only_on_a_primary, send};
use crate::mysql::error::{explain, fault, number};
use crate::mysql::sql::{Value, fill};
use crate::pool::{self, Fault};
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::{Key, short, tag};
use crate::session::sessions::lost;
use crate::unharmed::unharmed;
use crate::value::protocol;

const TAKE: &str = include_str!("sql/take.sql");
const GIVE: &str = include_str!("sql/give.sql");
const BEAT: &str = include_str!("sql/beat.sql");

/// Reads who holds a lock.
const HOLDER: &str = include_str!("sql/holder.sql");

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

/// How far the ceiling is raised at a time.
const BLOCK: i64 = 1 << 20;

/// For how many seconds a statement waits for rows and tables. The transactions here are short.
const LOCK_WAIT: i64 = 5;

/// As good as no limit for a wait: a year, the longest the server takes.
const ENDLESS: i64 = 31_536_000;

#[derive(Debug)]
pub(super) struct MySql {
    pub(super) config: MySqlConfig,
    /// What this client last read about a life of its server, and is on that server's disk.
    pub(super) known: Mutex<Option<Life>>,
}

/// A connection, and what is known of the life of the server at its other end.
pub(super) struct Conn {
    conn: MySqlConnection,
    life: Life,
}

/// What a session knows of its server's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    id: i64,
    /// What is added to the server's counter.
    shift: i64,
    /// Above all numbers that may be given; on the disk.
    ceiling: i64,
}

impl Life {
    /// The token epoch of the numbers.
    fn epoch(&self) -> TokenEpoch {
        TokenEpoch::of(self.ceiling)
    }
}

impl MySql {
    /// Sends a request of the `sql/` folder, which is not prepared.
    async fn request(&self, conn: &mut MySqlConnection, text: &str, values: &[(&str, Value)]) -> Sent {
        unharmed(send(conn, only_on_a_primary() + &fill(text, &self.config.namespace, values))).await
    }

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

    /// Asks the table about the life of the connection's server, and keeps what it says, which is on the disk.
    async fn table(&self, conn: &mut Conn, text: &'static str, number: i64) -> Result<()> {
        let Life { id, shift, ceiling } = conn.life;
        let values =
            [("life", id), ("shift", shift), ("ceiling", ceiling), ("number", number), ("block", BLOCK)];
        let values = values.map(|(name, value)| (name, Value::Int(value)));
        let row = self.request(&mut conn.conn, text, &values).await.map_err(ended)?.all()?.pop();
        // Another server counts, or has counted, and this one does not know.
        let taken_over = || Error::new(ErrorKind::Unavailable, "the table belongs to another server by now");
        (conn.life.shift, conn.life.ceiling) = row.ok_or_else(taken_over)?;
        Ok(())
    }
}

#[async_trait]
impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;
    const FAULT: fn(&sqlx::Error) -> Fault = fault;

    async fn connect(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.config, LOCK_WAIT).await?;
        let (process, now, life) = loop {
            let set_up = self.request(&mut conn, include_str!("sql/set_up.sql"), &[]).await.map_err(ended)?;
            let (session, again, text, up, life, shift, ceiling): (_, i64, Vec<u8>, i64, _, _, _) =
                set_up.one()?;
            if session != again {
                return Err(protocol("two ids of one session"));
            }
            // A life is known by the second in which it began, and so is its counter: a life that gives numbers only later than that
            // shares it with no other that does. Below zero where the clock was stepped back behind the start.
            if up != 0 {
                let id = (short(&Sha256::digest(text).into()) & i64::MAX) | 1;
                break (session, Life { id, shift, ceiling }, life);
            }
            // By the client's clock: the server's `SLEEP` is by a clock that may be stepped.
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // What this client read before is on the disk, and it needs no commit. Another life may have taken over in between, and this
        // one begun again.
        let same = |old: &Life| {
            (old.id, old.id, old.shift) == (now.id, life, now.shift) && old.ceiling <= now.ceiling
        };
        let known = self.known.lock().filter(same);
        let mut conn = Conn { conn, life: known.unwrap_or(now) };
        if known.is_none() {
            self.table(&mut conn, include_str!("sql/begin.sql"), 0).await?;
        }
        *self.known.lock() = Some(conn.life);
        // What every lock asks for takes one round trip from the first time on.
        for sql in [TAKE, GIVE, BEAT] {
            unharmed(conn.conn.prepare(sql.into_sql_str())).await.map_err(ended)?;
        }
        Ok((conn, Id { process, born: now.id }))
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
            let high = i64::from(u16::from(epoch)) << 48;
            Box::pin(self.table(conn, include_str!("sql/epoch.sql"), high)).await?;
        }
        epoch.check(conn.life.epoch())?;
        let take = sqlx::query(TAKE).bind(hex::encode(wish.key)).bind(wait).bind(conn.life.shift);
        let taken = Self::quick(conn, take.bind(tag(wish.request.holder))).await?;
        // Held, but not granted before a crash cannot bring the number back.
        if let (_, Some(number)) = taken
            && number >= conn.life.ceiling
        {
            Box::pin(self.table(conn, include_str!("sql/raise.sql"), number)).await?;
            if let Err(refused) = epoch.check(conn.life.epoch()) {
                // A larger token epoch has begun: others need not wait for the end of the connection.
                Box::pin(Self::give(conn, &wish.key)).await?;
                return Err(refused);
            }
            *self.known.lock() = Some(conn.life);
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

/// What an error says of the session.
fn ended(error: sqlx::Error) -> Error {
    // By somebody's order, for having been idle, with the server.
    if matches!(number(&error), Some(1053 | 1927 | 3169 | 4031)) { lost(error) } else { explain(error) }
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
