//! What a session is asked, and what its answers mean.

use std::time::Duration;

use onelock_core::{Capabilities, EntryView, FencingToken, Mode, Result, TokenEpoch};
use sqlx::FromRow;
use sqlx::postgres::PgRow;

use super::session::{BEAT, Conn, GIVE, Postgres, Query, TAKE};
use crate::hosts::bad;
use crate::pool::{self, Fault};
use crate::postgres::error::fault;
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::{Key, tag};
use crate::session::sessions::strange;
use crate::unharmed::unharmed;

impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;

    async fn connect(&self) -> Result<(Conn, Id)> {
        self.session().await
    }

    fn fault(error: &sqlx::Error) -> Fault {
        fault(error)
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask, idle: Option<Duration>) -> Result<Answer> {
        match ask {
            Ask::Take(wish, wait) => self.take(conn, wish, *wait, idle).await,
            Ask::Give(wish) => {
                let give = self.query(GIVE).bind(wish.key.short());
                self.done(conn, give.bind(i32::from(shared(wish)))).await
            }
            Ask::Beat(_) => self.done(conn, self.query(BEAT).bind(idle.map(millis))).await,
        }
    }

    async fn waiting(&self, conn: &mut Conn, some: Vec<(Id, Key)>) -> Result<Vec<Id>> {
        let (pids, born): (Vec<_>, Vec<_>) = some.iter().map(|(id, _)| (id.process, id.born)).unzip();
        let waiting = self.query(include_str!("sql/waiting.sql")).bind(pids).bind(born);
        let (pids, born): (Vec<_>, Vec<_>) = self.fetch(conn, waiting).await?.ok_or_else(strange)?;
        Ok(pids.into_iter().zip(born).map(|(process, born)| Id { process, born }).collect())
    }

    async fn holders(&self, conn: &mut Conn, key: Key) -> Result<Vec<EntryView>> {
        let holders = self.query(include_str!("sql/holders.sql")).bind(key.short());
        let (locks, names): (Vec<String>, Vec<String>) =
            self.fetch(conn, holders).await?.ok_or_else(strange)?;
        Ok(locks.iter().zip(&names).filter_map(|(lock, name)| holder(lock, name)).collect())
    }

    async fn end(&self, conn: &mut Conn, whose: Whose) -> Result<bool> {
        let holder = |key: Key, part: String, which: i32| {
            self.query(include_str!("sql/evict.sql")).bind(key.short()).bind(part).bind(which)
        };
        let end = match whose {
            Whose::Session(id) => self.query(include_str!("sql/end.sql")).bind(id.process).bind(id.born),
            Whose::Numbered(key, token) => holder(key, token.to_string(), 2),
            Whose::Of(key, tag) => holder(key, tag, 3),
        };
        Ok(self.fetch::<()>(conn, end).await?.is_some())
    }
}

impl Postgres {
    async fn take(&self, conn: &mut Conn, wish: &Wish, wait: bool, idle: Option<Duration>) -> Result<Answer> {
        let epoch = i32::from(u16::from(wish.request.epoch));
        if wish.request.epoch > conn.epoch {
            let begin = self.query(include_str!("sql/epoch.sql")).bind(epoch);
            Box::pin(self.fetch::<()>(conn, begin)).await?;
            conn.epoch = wish.request.epoch;
        }
        let take = self.query(TAKE).bind(wish.key.short()).bind(label(wish)).bind(idle.map(millis));
        let take = take.bind(epoch).bind(i32::from(shared(wish)) + 2 * i32::from(wait));
        let taken = self.fetch(conn, take).await?.ok_or_else(strange)?;
        let (process, _, name, drawn): (_, Option<String>, Option<String>, Option<i64>) = taken;
        conn.answered(process)?;
        let drawn = TokenEpoch::of(drawn.unwrap_or(0));
        wish.request.epoch.check(drawn)?;
        if drawn < wish.request.epoch {
            return Err(bad(
                "the sequence of the numbers was set back, as by a restore; raise `token_epoch`",
            ));
        }
        let token = name.map(|name| numbered(&name).map(|(token, _)| token).ok_or_else(strange));
        Ok(Answer::Taken(token.transpose()?))
    }

    /// One round trip, and the values of the first row, if there is one.
    async fn fetch<T>(&self, conn: &mut Conn, query: Query) -> Result<Option<T>>
    where
        T: for<'r> FromRow<'r, PgRow>,
    {
        // Not as a stream of rows: the driver's takes half as many instructions again.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await;
        let row = row.map_err(|error| self.explained(error))?;
        Ok(pool::Answer::new(row.into_iter().collect(), 0).all()?.pop())
    }

    async fn done(&self, conn: &mut Conn, query: Query) -> Result<Answer> {
        let (process, done) = self.fetch(conn, query).await?.ok_or_else(strange)?;
        conn.answered(process)?;
        Ok(Answer::Done(done))
    }
}

/// A holder by the mode of its lock and the name of its session.
fn holder(lock: &str, name: &str) -> Option<EntryView> {
    let (token, note) = numbered(name)?;
    let mode = if lock == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
    Some(EntryView::new(token, mode, note))
}

/// What follows the number in a session's name; servers show printable ASCII of it.
fn label(wish: &Wish) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let note = wish.request.note.as_str().chars().map(plain);
    [" ", &tag(wish.request.holder), " "].into_iter().flat_map(str::chars).chain(note).collect()
}

/// The number and the note in a session's name.
fn numbered(name: &str) -> Option<(FencingToken, &str)> {
    let (number, rest) = name.strip_prefix("onelock ")?.split_once(' ')?;
    let (_tag, note) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((FencingToken::new(number.parse().ok()?).ok()?, note))
}

fn shared(wish: &Wish) -> bool {
    wish.request.mode == Mode::Shared
}

fn millis(time: Duration) -> String {
    // Up: a part of a millisecond must not become no limit at all.
    time.as_nanos().div_ceil(1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_says_what_it_holds() {
        let read = |name| numbered(name).map(|(token, note)| (token.get(), note));
        assert_eq!(read("onelock 42 abc host:1 and more"), Some((42, "host:1 and more")));
        assert_eq!(read("onelock 42 abc"), Some((42, "")));
        for other in ["onelock", "onelock 42", "onelock x abc", "onelock 0 abc", "psql", "", "other 42 abc"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn no_lease_becomes_endless() {
        assert_eq!(millis(Duration::from_nanos(1)), "1");
        assert_eq!(millis(Duration::from_millis(1500)), "1500");
        assert!(super::super::CAPABILITIES.max_lease.as_millis() < i32::MAX as u128);
    }
}
