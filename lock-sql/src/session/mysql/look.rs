//! Looking at other sessions, and ending them.

use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::{Conn, MySql, bytes, int, maybe, own, quoted, says_number, strange};
use crate::mysql::error::number;
use crate::mysql::link::run;
use crate::mysql::sql::Value;
use crate::session::dialect::{Answer, Id, Seen};
use crate::session::names::Key;
use crate::unharmed::{legible, unharmed};

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

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
            let Some(holder) = self.holder(conn, key).await? else { return Ok(Answer::Holders(Vec::new())) };
            let own = own(holder);
            let row = self.digits(conn, &own, holder).await?;
            let digits: Vec<Option<i64>> = legible(|| (1..=4).map(|place| maybe(&row, place)).collect())?;
            // It has not said it all yet, or is about to hold nothing.
            let Some(digits) = digits.into_iter().collect::<Option<Vec<_>>>() else { continue };
            let number = digits.iter().rev().fold(0, |number, digit| (number << 12) | digit);
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
        let Some(holder) = self.holder(conn, key).await? else { return Ok(Answer::No) };
        if !self.holds(conn, key, holder, &says(&own(holder))).await? {
            return Ok(Answer::No);
        }
        self.end(conn, holder).await
    }

    /// Ends a session of this life of the server, and waits until it holds nothing any more.
    pub(super) async fn end(&self, conn: &mut Conn, session: i64) -> Result<Answer> {
        match unharmed(run(&mut conn.conn, &format!("KILL {session}"))).await {
            Ok(_) => {}
            // There is none.
            Err(error) if number(&error) == Some(1094) => return Ok(Answer::No),
            Err(error) => return Err(super::ended(error)),
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

    async fn holder(&self, conn: &mut Conn, key: &Key) -> Result<Option<i64>> {
        let key = quoted(&key.long());
        let row = self.fetch_one(conn, &self.sql.holder, &[("key", Value::Part(&key))]).await?;
        legible(|| maybe(&row, 1))
    }

    async fn holds(&self, conn: &mut Conn, key: &Key, holder: i64, says: &str) -> Result<bool> {
        let key = quoted(&key.long());
        let says = says.replace(":holder", &holder.to_string());
        let values =
            [("key", Value::Part(&key)), ("holder", Value::Int(holder)), ("says", Value::Part(&says))];
        let row = self.fetch_one(conn, &self.sql.holds, &values).await?;
        Ok(legible(|| int(&row, 1))? == 1)
    }

    async fn digits(&self, conn: &mut Conn, own: &str, holder: i64) -> Result<MySqlRow> {
        let own = quoted(own);
        let values =
            [("own", Value::Part(&own)), ("holder", Value::Int(holder)), ("sixteen", Value::Part(SIXTEEN))];
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
