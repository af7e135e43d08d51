//! What a session is asked, and what its answers mean.

use std::time::{Duration, Instant};

use onelock_core::{Error, ErrorKind, FencingToken, Result};
use sqlx::Executor as _;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::life::Life;
use super::prepared::Prepared;
use super::words::{Said, ended, in_step, int, says_number, says_tag, seconds, strange, whole};
use super::{ENDLESS, MySql};
use crate::mysql::error::number;
use crate::mysql::pool::run;
use crate::mysql::sql::{Template, Value};
use crate::session::dialect::{Answer, Ask, Dialect, Session, Whom, Wish};
use crate::session::names::Key;
use crate::unharmed::{legible, unharmed};

/// A connection, and the session at its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) conn: MySqlConnection,
    pub(super) id: i64,
    /// How many questions it was asked.
    pub(super) asked: i64,
    pub(super) life: Life,
    /// How long the server lets it be idle, zero is for ever; and when it last answered.
    pub(super) limit: Duration,
    pub(super) answered: Instant,
}

impl Conn {
    /// The number of the next question.
    fn next(&mut self) -> i64 {
        self.asked += 1;
        self.asked
    }

    /// Which session is asked, and what.
    fn due(&self) -> (i64, i64) {
        (self.id, self.asked)
    }

    /// Whether these rows answer that question.
    fn check(&self, rows: &[MySqlRow]) -> Result<()> {
        legible(|| rows.iter().try_for_each(|row| in_step(int(row, 0)?, self.due())))
    }
}

impl MySql {
    /// One round trip. The rows of all results; the first column of each says which session answers what question.
    pub(super) async fn fetch(
        &self,
        conn: &mut Conn,
        sql: &Template,
        values: &[(&'static str, Value<'_>)],
    ) -> Result<Vec<MySqlRow>> {
        let mut all = vec![("asked", Value::Int(conn.next()))];
        all.extend_from_slice(values);
        let rows = unharmed(run(&mut conn.conn, sql.fill(&all))).await.map_err(ended)?;
        conn.check(&rows)?;
        Ok(rows)
    }

    /// The same, of one row.
    pub(super) async fn fetch_one(
        &self,
        conn: &mut Conn,
        sql: &Template,
        values: &[(&'static str, Value<'_>)],
    ) -> Result<MySqlRow> {
        self.fetch(conn, sql, values).await?.into_iter().next().ok_or_else(strange)
    }

    /// What every lock is asked, and what `read` makes of the parts of its answer: by the statement that the server has read,
    /// unless the session's time changes with it. The first value is the question's number.
    async fn quick<const N: usize, T: Send>(
        &self,
        conn: &mut Conn,
        (sql, prepared): (&Template, &Prepared<N>),
        idle: Option<Duration>,
        values: [Value<'_>; N],
        read: impl FnOnce(&Said<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let row = if idle.is_none() && self.mariadb {
            // Not as a stream of rows: the driver's takes more instructions, and the answer has one. What is left of it the
            // driver reads before the next question.
            let row = unharmed(conn.conn.fetch_optional(prepared.with(values))).await.map_err(ended)?;
            row.ok_or_else(strange)?
        } else {
            let idle = idle.map(|idle| format!("SET SESSION wait_timeout = {};", seconds(idle)));
            let mut all = vec![("idle", Value::Part(idle.as_deref().unwrap_or_default()))];
            all.extend(prepared.names.into_iter().zip(values));
            let rows = Box::pin(unharmed(run(&mut conn.conn, sql.fill(&all)))).await.map_err(ended)?;
            let mut rows = rows.into_iter();
            let (Some(row), None) = (rows.next(), rows.next()) else { return Err(strange()) };
            row
        };
        legible(|| read(&Said::read(&row, conn.due())?))
    }

    async fn take(&self, conn: &mut Conn, wish: &Wish, wait: bool, idle: Option<Duration>) -> Result<Answer> {
        let values = [
            Value::Int(conn.next()),
            Value::Digest(wish.key.long()),
            Value::Int(if wait { ENDLESS } else { 0 }),
            Value::Int(conn.life.shift),
            Value::Text(wish.tag.as_str()),
        ];
        let take = (&self.sql.take, &self.sql.quick.take);
        let granted = |said: &Said<'_>| said.granted(wish.tag.as_str());
        let Some(number) = self.quick(conn, take, idle, values, granted).await? else {
            return Ok(Answer::No);
        };
        self.covered(conn, number).await.map(Answer::Taken)
    }

    async fn swap(&self, conn: &mut Conn, key: &Key, wish: &Wish) -> Result<Answer> {
        let values = [
            Value::Int(conn.next()),
            Value::Digest(key.long()),
            Value::Digest(wish.key.long()),
            Value::Int(conn.life.shift),
            Value::Text(wish.tag.as_str()),
        ];
        let swap = (&self.sql.swap, &self.sql.quick.swap);
        let swapped = |said: &Said<'_>| said.swapped(wish.tag.as_str());
        Ok(match self.quick(conn, swap, None, values, swapped).await? {
            None => Answer::No,
            Some(None) => Answer::Swapped(None),
            Some(Some(number)) => Answer::Swapped(Some(self.covered(conn, number).await?)),
        })
    }

    /// A number as a token: held, but not granted before a crash cannot bring it back.
    async fn covered(&self, conn: &mut Conn, number: i64) -> Result<FencingToken> {
        let token = FencingToken::new(number)?;
        if !conn.life.covers(number) {
            Box::pin(self.cover(conn, number)).await?;
        }
        Ok(token)
    }
}

impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";

    async fn connect(&self) -> Result<Session<Conn>> {
        self.session_within(self.request_timeout).await
    }

    fn is_full(error: &Error) -> bool {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
        matches!(source.and_then(number), Some(1040 | 1203 | 1226))
    }

    fn swaps(&self) -> bool {
        self.mariadb
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        let idle = conn.answered.elapsed();
        let answer = self.answer(conn, ask).await;
        match answer {
            Ok(answer) => {
                conn.limit = ask.idle().unwrap_or(conn.limit);
                conn.answered = Instant::now();
                Ok(answer)
            }
            // MariaDB ends an idle session without a word: nobody was there to be asked.
            Err(error) if error.is_unclear() && !conn.limit.is_zero() && idle >= whole(conn.limit) => {
                Err(Error::new(ErrorKind::Lost, "the server has ended the idle session").caused_by(error))
            }
            Err(error) => Err(error),
        }
    }
}

impl MySql {
    async fn answer(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        match ask {
            Ask::Take { wish, wait, idle } => self.take(conn, wish, *wait, *idle).await,
            Ask::Swap { key, wish } => self.swap(conn, key, wish).await,
            Ask::Give { key, .. } => {
                let values = [Value::Int(conn.next()), Value::Digest(key.long())];
                let give = (&self.sql.give, &self.sql.quick.give);
                let held = self.quick(conn, give, None, values, |said: &Said<'_>| said.held()).await?;
                Ok(if held { Answer::Yes } else { Answer::No })
            }
            Ask::Beat { idle } => {
                let values = [Value::Int(conn.next())];
                let beat = (&self.sql.beat, &self.sql.quick.beat);
                self.quick(conn, beat, *idle, values, |_| Ok(Answer::Yes)).await
            }
            // What is rare makes no room for itself where every lock passes.
            Ask::Waits(id) => Box::pin(self.waits(conn, *id)).await,
            Ask::Look(key) => Box::pin(self.look(conn, key)).await,
            Ask::End(Whom::Session(id)) => {
                // What belongs to another life of the server has ended with it.
                if id.born != conn.life.id {
                    return Ok(Answer::No);
                }
                Box::pin(self.end(conn, id.process)).await
            }
            Ask::End(Whom::Tag(key, tag)) => {
                Box::pin(self.end_holder(conn, key, |own| says_tag(own, tag.as_str()))).await
            }
            Ask::End(Whom::Token(key, token)) => {
                Box::pin(self.end_holder(conn, key, |own| says_number(own, token.get()))).await
            }
        }
    }
}
