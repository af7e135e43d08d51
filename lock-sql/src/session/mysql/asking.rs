//! What a session is asked, and what its answers mean.

use std::time::{Duration, Instant};

use lock_core::{Error, ErrorKind, FencingToken, Result};
use sqlx::Executor as _;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::life::Life;
use super::prepared::Prepared;
use super::words::{bytes, ended, int, maybe, own, proxied, says_number, says_tag, seconds, strange, whole};
use super::{ENDLESS, MySql};
use crate::mysql::link::{rows, run};
use crate::mysql::sql::{Template, Value};
use crate::session::dialect::{Answer, Ask, Dialect, Session, Whom};
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
    /// The next question: its number with its values.
    fn next<'a>(&mut self, values: &[(&'static str, Value<'a>)]) -> Vec<(&'static str, Value<'a>)> {
        self.asked += 1;
        let mut all = Vec::with_capacity(values.len() + 1);
        all.push(("asked", Value::Int(self.asked)));
        all.extend_from_slice(values);
        all
    }

    /// Whether these rows answer that question.
    fn check(&self, rows: &[MySqlRow]) -> Result<()> {
        legible(|| {
            for row in rows {
                match int(row, 0)?.wrapping_sub(self.id) {
                    asked if asked == self.asked => {}
                    // The answer to another question: the connection is out of step.
                    earlier if (0..self.asked).contains(&earlier) => return Err(strange()),
                    // The lock belongs to the session: another one, by a proxy, is not ours.
                    _ => return Err(proxied()),
                }
            }
            Ok(())
        })
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
        let all = conn.next(values);
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

    /// The same, by the statement that the server has read, unless the session's time changes with it.
    async fn quick(
        &self,
        conn: &mut Conn,
        sql: &Template,
        prepared: Option<&Prepared>,
        (idle, values): (Option<Duration>, &[(&'static str, Value<'_>)]),
    ) -> Result<MySqlRow> {
        let (Some(prepared), None) = (prepared, idle) else {
            let idle = idle.map(|idle| format!("SET SESSION wait_timeout = {};", seconds(idle)));
            let mut all = vec![("idle", Value::Part(idle.as_deref().unwrap_or_default()))];
            all.extend_from_slice(values);
            return self.fetch_one(conn, sql, &all).await;
        };
        let all = conn.next(values);
        let asked = rows(conn.conn.fetch_many(prepared.with(&all)));
        let rows = unharmed(asked).await.map_err(ended)?;
        conn.check(&rows)?;
        rows.into_iter().next().ok_or_else(strange)
    }

    async fn take(&self, conn: &mut Conn, ask: Take<'_>) -> Result<Answer> {
        let own = own(conn.id);
        let values = [
            ("key", Value::Digest(ask.key.long())),
            ("patience", Value::Int(if ask.wait { ENDLESS } else { 0 })),
            ("shift", Value::Int(conn.life.shift)),
            ("own", Value::Text(&own)),
            ("tag", Value::Bytes(ask.tag.as_bytes())),
        ];
        let prepared = self.sql.quick.as_ref().map(|quick| &quick.take);
        let row = self.quick(conn, &self.sql.take, prepared, (ask.idle, &values)).await?;
        let (number, whose, said) = legible(|| Ok((maybe(&row, 1)?, bytes(&row, 2)?, maybe(&row, 3)?)))?;
        match (number, &whose[..], said) {
            (None, [0, rest @ ..], None) if rest == ask.tag.as_bytes() => Ok(Answer::No),
            (Some(number), whose, Some(said)) if whose == ask.tag.as_bytes() && said == number => {
                let token = FencingToken::new(number)?;
                // Held, but not granted before a crash cannot bring this number back.
                self.cover(conn, number).await?;
                Ok(Answer::Taken(token))
            }
            _ => Err(strange()),
        }
    }
}

struct Take<'a> {
    key: &'a Key,
    wait: bool,
    tag: &'a str,
    idle: Option<Duration>,
}

impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";

    async fn connect(&self) -> Result<Session<Conn>> {
        self.session_within(self.request_timeout).await
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
            Ask::Take { key, wait, tag, idle, .. } => {
                self.take(conn, Take { key, wait: *wait, tag, idle: *idle }).await
            }
            Ask::Give { key, .. } => {
                let key = [("key", Value::Digest(key.long()))];
                let prepared = self.sql.quick.as_ref().map(|quick| &quick.give);
                let row = self.quick(conn, &self.sql.give, prepared, (None, &key)).await?;
                Ok(if legible(|| maybe(&row, 1))? == Some(1) { Answer::Yes } else { Answer::No })
            }
            Ask::Beat { idle } => {
                let prepared = self.sql.quick.as_ref().map(|quick| &quick.beat);
                self.quick(conn, &self.sql.beat, prepared, (*idle, &[])).await?;
                Ok(Answer::Yes)
            }
            Ask::Waits(id) => self.waits(conn, *id).await,
            Ask::Look(key) => self.look(conn, key).await,
            Ask::End(Whom::Session(id)) => {
                // What belongs to another life of the server has ended with it.
                if id.born == conn.life.id { self.end(conn, id.process).await } else { Ok(Answer::No) }
            }
            Ask::End(Whom::Tag(key, tag)) => self.end_holder(conn, key, |own| says_tag(own, tag)).await,
            Ask::End(Whom::Token(key, token)) => {
                self.end_holder(conn, key, |own| says_number(own, token.get())).await
            }
        }
    }
}
