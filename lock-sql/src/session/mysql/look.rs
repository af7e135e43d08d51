//! Looking at other sessions, and ending them.

use onelock_core::{EntryView, Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::mysql::MySqlRow;

use super::MySql;
use super::asking::Conn;
use super::words::{bytes, ended, int, maybe};
use crate::mysql::error::number;
use crate::mysql::pool::run;
use crate::mysql::sql::Value;
use crate::session::dialect::Whose;
use crate::session::names::Key;
use crate::unharmed::{legible, unharmed};

/// How often to look at a holder that says something else each time: it holds for less time than a look takes.
const LOOKS: u32 = 20;

impl MySql {
    pub(super) async fn those_waiting(&self, conn: &mut Conn, processes: &[i64]) -> Result<Vec<i64>> {
        let rows = self.sessions(conn, processes).await?;
        let waiting = |row: &MySqlRow| Ok((int(row, 1)? == 1).then_some(int(row, 0)?));
        let waiting = legible(|| rows.iter().map(waiting).collect::<Result<Vec<_>>>())?;
        Ok(waiting.into_iter().flatten().collect())
    }

    pub(super) async fn view(&self, conn: &mut Conn, key: &Key) -> Result<Vec<EntryView>> {
        let mut before = None;
        for _ in 0..LOOKS {
            let Some(seen) = self.holder(conn, key).await? else { return Ok(Vec::new()) };
            if let (holder, Some(number)) = seen
                && before.replace(seen) == Some(seen)
                && let Some(row) = self.sessions(conn, &[holder]).await?.pop()
            {
                let note = String::from_utf8_lossy(&legible(|| bytes(&row, 2))?).into_owned();
                return Ok(vec![EntryView::new(FencingToken::new(number)?, Mode::Exclusive, note)]);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock changes hands faster than it can be looked at"))
    }

    /// Whether there was such a session.
    pub(super) async fn kill(&self, conn: &mut Conn, whose: &Whose) -> Result<bool> {
        let session = match whose {
            // What belongs to another life of the server has ended with it.
            Whose::Session(id) => Some(id.process).filter(|_| id.born == conn.life.id),
            Whose::Numbered(key, token) => {
                let seen = self.holder(conn, key).await?.filter(|seen| seen.1 == Some(token.get()));
                // The parts of one number, and not of two?
                let same = seen.is_some() && self.holder(conn, key).await? == seen;
                seen.filter(|_| same).map(|(holder, _)| holder)
            }
            Whose::Of(key, tag) => {
                let values = [("key", Value::Digest(key.long())), ("tag", Value::Part(tag.as_str()))];
                let is_of = include_str!("sql/is_of.sql");
                self.first(&mut conn.conn, is_of, &values, |row| maybe(row, 0)).await?.flatten()
            }
        };
        let Some(session) = session else { return Ok(false) };
        match unharmed(run(&mut conn.conn, format!("KILL {session}"))).await {
            Ok(_) => Ok(true),
            // There is none.
            Err(error) if number(&error) == Some(1094) => Ok(false),
            Err(error) => Err(ended(error)),
        }
    }

    /// The session that holds the lock, and the number it says it has, as far as it does.
    async fn holder(&self, conn: &mut Conn, key: &Key) -> Result<Option<(i64, Option<i64>)>> {
        let key = [("key", Value::Digest(key.long()))];
        let seen = |row: &MySqlRow| Ok(maybe(row, 0)?.zip(Some(maybe(row, 1)?)));
        Ok(self.first(&mut conn.conn, include_str!("sql/holder.sql"), &key, seen).await?.flatten())
    }

    /// Those of these sessions that are there.
    async fn sessions(&self, conn: &mut Conn, some: &[i64]) -> Result<Vec<MySqlRow>> {
        let some: Vec<_> = some.iter().map(i64::to_string).collect();
        let some = [("some", Value::Part(&some.join(",")))];
        self.rows(&mut conn.conn, include_str!("sql/sessions.sql"), &some).await
    }
}
