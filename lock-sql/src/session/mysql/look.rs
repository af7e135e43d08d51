//! Looking at other sessions, and ending them.

use std::time::Duration;

use onelock_core::{EntryView, Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::MySql;
use super::asking::Conn;
use super::words::{bytes, ended, int, maybe, strange};
use crate::mysql::error::number;
use crate::mysql::pool::run;
use crate::mysql::sql::{Template, Value};
use crate::session::dialect::Answer;
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
    pub(super) async fn waiting(&self, conn: &mut Conn, processes: &[i64]) -> Result<Answer> {
        let rows = self.sessions(conn, processes).await?;
        let waiting = |row: &MySqlRow| Ok((int(row, 1)? == 1).then_some(int(row, 0)?));
        let waiting = legible(|| rows.iter().map(waiting).collect::<Result<Vec<_>>>())?;
        Ok(Answer::Waiting(waiting.into_iter().flatten().collect()))
    }

    pub(super) async fn holders(&self, conn: &mut Conn, key: &Key) -> Result<Answer> {
        for _ in 0..LOOKS {
            let Some((holder, last)) = self.holder(conn, key).await? else {
                return Ok(Answer::Holders(Vec::new()));
            };
            // It has not said it all yet, or is about to hold nothing.
            let Some(number) = self.said(conn, holder, last).await? else { continue };
            // The parts of one number, and not of two, one after the other?
            if !self.holds(conn, key, holder, number).await? {
                continue;
            }
            let Some(row) = self.sessions(conn, &[holder]).await?.pop() else { continue };
            let note = String::from_utf8_lossy(&legible(|| bytes(&row, 2))?).into_owned();
            let (token, mode) = (FencingToken::new(number)?, Mode::Exclusive);
            return Ok(Answer::Holders(vec![EntryView::new(token, mode, note)]));
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock changes hands faster than it can be looked at"))
    }

    /// Ends the holder of the lock, if it has this number.
    pub(super) async fn evict(&self, conn: &mut Conn, key: &Key, number: i64) -> Result<Answer> {
        match self.holder(conn, key).await? {
            Some((holder, _)) if self.holds(conn, key, holder, number).await? => self.end(conn, holder).await,
            _ => Ok(Answer::Done(false)),
        }
    }

    /// The same, if it says that it is this one's.
    pub(super) async fn disown(&self, conn: &mut Conn, key: &Key, tag: &str) -> Result<Answer> {
        let Some((holder, _)) = self.holder(conn, key).await? else { return Ok(Answer::Done(false)) };
        let values =
            [("key", Value::Digest(key.long())), ("holder", Value::Int(holder)), ("tag", Value::Part(tag))];
        let row = Self::one(conn, &self.sql.is_of, &values).await?;
        if legible(|| int(&row, 0))? == 0 {
            return Ok(Answer::Done(false));
        }
        self.end(conn, holder).await
    }

    /// Ends a session of this life of the server, and waits until it holds nothing any more.
    pub(super) async fn end(&self, conn: &mut Conn, session: i64) -> Result<Answer> {
        match unharmed(run(&mut conn.conn, format!("KILL {session}"))).await {
            Ok(_) => {}
            // There is none.
            Err(error) if number(&error) == Some(1094) => return Ok(Answer::Done(false)),
            Err(error) => return Err(ended(error)),
        }
        let end = Instant::now() + self.request_timeout;
        let mut pause = Duration::from_micros(200);
        while !self.sessions(conn, &[session]).await?.is_empty() {
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Timeout, "the session does not end"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(Answer::Done(true))
    }

    /// The session that holds the lock, and a number about as high as any that was drawn so far, without its
    /// token epoch.
    async fn holder(&self, conn: &mut Conn, key: &Key) -> Result<Option<(i64, i64)>> {
        let values = [("key", Value::Digest(key.long())), ("shift", Value::Int(conn.life.shift))];
        let row = Self::one(conn, &self.sql.holder, &values).await?;
        let (holder, last) = legible(|| Ok((maybe(&row, 0)?, int(&row, 1)?)))?;
        Ok(holder.map(|holder| (holder, last)))
    }

    /// The number that this session says it has. A page of numbers covers what is drawn in an hour by thousands of owners a
    /// second, so one is enough but for locks that are held for long while others are busy.
    async fn said(&self, conn: &mut Conn, holder: i64, last: i64) -> Result<Option<i64>> {
        let mut top = last.saturating_add(AHEAD) >> 12;
        while top >= 0 {
            let values =
                [("holder", Value::Int(holder)), ("top", Value::Int(top)), ("sixteen", Value::Part(SIXTEEN))];
            let row = Self::one(conn, &self.sql.digits, &values).await?;
            match legible(|| Ok((maybe(&row, 0)?, maybe(&row, 1)?)))? {
                (Some(low), Some(high)) => {
                    let epoch = legible(|| int(&row, 2))?;
                    return Ok(Some((epoch << 48) | (high << 12) | low));
                }
                // The lowest bits are said last: the others are further down.
                (Some(_), None) => top -= 4096,
                (None, _) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Whether this session holds the lock under this number.
    async fn holds(&self, conn: &mut Conn, key: &Key, holder: i64, number: i64) -> Result<bool> {
        let values = [
            ("key", Value::Digest(key.long())),
            ("holder", Value::Int(holder)),
            ("low", Value::Int(number & 4095)),
            ("high", Value::Int((number >> 12) & 0xf_ffff_ffff)),
            ("epoch", Value::Int(number >> 48)),
        ];
        let row = Self::one(conn, &self.sql.holds, &values).await?;
        Ok(legible(|| int(&row, 0))? == 1)
    }

    /// Those of these sessions that are there.
    async fn sessions(&self, conn: &mut Conn, some: &[i64]) -> Result<Vec<MySqlRow>> {
        let some: Vec<_> = some.iter().map(i64::to_string).collect();
        let sql = self.sql.sessions.fill(&[("some", Value::Part(&some.join(",")))]);
        unharmed(run(&mut conn.conn, sql)).await.map_err(ended)
    }

    async fn one(conn: &mut Conn, sql: &Template, values: &[(&str, Value<'_>)]) -> Result<MySqlRow> {
        let rows = unharmed(run(&mut conn.conn, sql.fill(values))).await.map_err(ended)?;
        rows.into_iter().next().ok_or_else(strange)
    }
}
