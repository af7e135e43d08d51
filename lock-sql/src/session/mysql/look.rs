//! Looking at other sessions, and ending them.

use std::time::Duration;

use onelock_core::{Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::MySql;
use super::asking::Conn;
use super::words::{bytes, ended, int, maybe, own, quoted, says_number, strange};
use crate::mysql::error::number;
use crate::mysql::pool::run;
use crate::mysql::sql::Value;
use crate::session::dialect::{Answer, Id, Seen};
use crate::session::names::Key;
use crate::unharmed::{legible, unharmed};

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

/// How many numbers may be drawn between the question who holds and what the holder says: some more than a second's.
const AHEAD: i64 = 1 << 16;

/// The digits of a table of 4096 numbers.
const SIXTEEN: &str = "SELECT 0 AS x UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
    UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11 \
    UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15";

impl MySql {
    /// Whether that session stands in the server's queue.
    pub(super) async fn waits(&self, conn: &mut Conn, id: Id) -> Result<Answer> {
        let waits = id.born == conn.life.id
            && match self.session(conn, id.process).await? {
                Some(row) => legible(|| int(&row, 1))? == 1,
                None => false,
            };
        Ok(if waits { Answer::Yes } else { Answer::No })
    }

    /// Who holds the lock.
    pub(super) async fn look(&self, conn: &mut Conn, key: &Key) -> Result<Answer> {
        for _ in 0..LOOKS {
            let Some((holder, last)) = self.holder(conn, key).await? else {
                return Ok(Answer::Holders(Vec::new()));
            };
            let own = own(holder);
            // It has not said it all yet, or is about to hold nothing.
            let Some(number) = self.said(conn, &own, holder, last).await? else { continue };
            // The digits of one number, and not of two, one after the other?
            if !self.holds(conn, key, holder, &says_number(&own, number)).await? {
                continue;
            }
            let note = match self.session(conn, holder).await? {
                Some(row) => String::from_utf8_lossy(&legible(|| bytes(&row, 2))?).into_owned(),
                None => continue,
            };
            let token = FencingToken::new(number)?;
            return Ok(Answer::Holders(vec![Seen { token, mode: Mode::Exclusive, note }]));
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock changes hands faster than it can be looked at"))
    }

    /// Ends the holder of the lock, if it says this of itself.
    pub(super) async fn end_holder(
        &self,
        conn: &mut Conn,
        key: &Key,
        says: impl FnOnce(&str) -> String,
    ) -> Result<Answer> {
        let Some((holder, _)) = self.holder(conn, key).await? else { return Ok(Answer::No) };
        if !self.holds(conn, key, holder, &says(&own(holder))).await? {
            return Ok(Answer::No);
        }
        self.end(conn, holder).await
    }

    /// Ends a session of this life of the server, and waits until it holds nothing any more.
    pub(super) async fn end(&self, conn: &mut Conn, session: i64) -> Result<Answer> {
        match unharmed(run(&mut conn.conn, format!("KILL {session}"))).await {
            Ok(_) => {}
            // There is none.
            Err(error) if number(&error) == Some(1094) => return Ok(Answer::No),
            Err(error) => return Err(ended(error)),
        }
        let end = Instant::now() + self.request_timeout;
        let mut pause = Duration::from_micros(200);
        while self.session(conn, session).await?.is_some() {
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Timeout, "the session does not end"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(Answer::Yes)
    }

    /// The session that holds the lock, and a number about as high as any that was drawn so far.
    async fn holder(&self, conn: &mut Conn, key: &Key) -> Result<Option<(i64, i64)>> {
        let values = [("key", Value::Digest(key.long())), ("shift", Value::Int(conn.life.shift))];
        let row = self.fetch_one(conn, &self.sql.holder, &values).await?;
        let (holder, last) = legible(|| Ok((maybe(&row, 1)?, int(&row, 2)?)))?;
        Ok(holder.map(|holder| (holder, last)))
    }

    /// The number that the session with this prefix says it has. A page of numbers covers what is drawn in an hour by thousands of
    /// owners a second, so one is enough but for locks that are held for long while others are busy.
    async fn said(&self, conn: &mut Conn, own: &str, holder: i64, last: i64) -> Result<Option<i64>> {
        let mut top = last.saturating_add(AHEAD) >> 12;
        while top >= 0 {
            let row = self.digits(conn, own, holder, top).await?;
            match legible(|| Ok((maybe(&row, 1)?, maybe(&row, 2)?)))? {
                (Some(low), Some(high)) => return Ok(Some((high << 12) | low)),
                // The lowest digits are said last: the others are further down.
                (Some(_), None) => top -= 4096,
                (None, _) => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn holds(&self, conn: &mut Conn, key: &Key, holder: i64, says: &str) -> Result<bool> {
        let says = says.replace(":holder", &holder.to_string());
        let values = [
            ("key", Value::Digest(key.long())),
            ("holder", Value::Int(holder)),
            ("says", Value::Part(&says)),
        ];
        let row = self.fetch_one(conn, &self.sql.holds, &values).await?;
        Ok(legible(|| int(&row, 1))? == 1)
    }

    async fn digits(&self, conn: &mut Conn, own: &str, holder: i64, top: i64) -> Result<MySqlRow> {
        let own = quoted(own);
        let values = [
            ("own", Value::Part(&own)),
            ("holder", Value::Int(holder)),
            ("top", Value::Int(top)),
            ("sixteen", Value::Part(SIXTEEN)),
        ];
        self.fetch_one(conn, &self.sql.digits, &values).await
    }

    /// The row of a session, if it is there.
    async fn session(&self, conn: &mut Conn, session: i64) -> Result<Option<MySqlRow>> {
        let mut rows = self.fetch(conn, &self.sql.session, &[("holder", Value::Int(session))]).await?;
        if rows.len() > 1 {
            return Err(strange());
        }
        Ok(rows.pop())
    }
}
