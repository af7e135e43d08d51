//! What a session is asked, and what its answers mean.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, FencingToken, Mode, Result};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgArguments;

use super::session::{Conn, Postgres, get, strange};
use crate::postgres::error::is_full;
use crate::session::dialect::{Answer, Ask, Dialect, Seen, Session, Whom, Wish};
use crate::session::names::push_plain;
use crate::unharmed::{legible, unharmed};

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, PgArguments>;

impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";

    async fn connect(&self) -> Result<Session<Conn>> {
        let conn = self.reach().await?;
        self.set_up(conn, self.request_timeout).await
    }

    fn is_full(error: &Error) -> bool {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
        source.is_some_and(is_full)
    }

    fn swaps(&self) -> bool {
        true
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        let patience = i64::try_from(self.request_timeout.as_millis()).unwrap_or(i64::MAX);
        let query = |sql: &Arc<str>| sqlx::query(AssertSqlSafe(Arc::clone(sql)));
        match ask {
            Ask::Take { wish, wait, idle } => {
                let sql = &self.sql.take[usize::from(*wait)][shared(wish.mode)];
                let query = query(sql).bind(wish.key.short()).bind(label(wish)).bind(idle.map(millis));
                let taken = |name: Option<&str>| match name {
                    None if !wait => Ok(Answer::No),
                    name => granted(name, wish).map(Answer::Taken),
                };
                self.fetch_one(conn, query, taken).await?.ok_or_else(strange)
            }
            Ask::Swap { key, wish } => {
                let query = query(&self.sql.swap).bind(key.short()).bind(wish.key.short()).bind(label(wish));
                let swapped = |name: Option<&str>| match name {
                    None => Ok(Answer::No),
                    Some("busy") => Ok(Answer::Swapped(None)),
                    name => granted(name, wish).map(|token| Answer::Swapped(Some(token))),
                };
                self.fetch_one(conn, query, swapped).await?.ok_or_else(strange)
            }
            Ask::Give { key, mode } => {
                self.done(conn, query(&self.sql.give[shared(*mode)]).bind(key.short())).await
            }
            Ask::Beat { idle } => self.done(conn, query(&self.sql.beat).bind(idle.map(millis))).await,
            Ask::Waits(id) => self.done(conn, query(&self.sql.waits).bind(id.process)).await,
            Ask::Look(key) => Box::pin(self.look(conn, query(&self.sql.look).bind(key.short()))).await,
            Ask::End(Whom::Session(id)) => {
                let query = query(&self.sql.end_session).bind(id.process).bind(id.born);
                self.done(conn, query.bind(patience)).await
            }
            Ask::End(Whom::Tag(key, tag)) => {
                let query =
                    query(&self.sql.end_holder).bind(key.short()).bind(3).bind(tag.as_str().to_owned());
                self.done(conn, query.bind(patience)).await
            }
            Ask::End(Whom::Token(key, token)) => {
                let query = query(&self.sql.end_holder).bind(key.short()).bind(2).bind(token.to_string());
                self.done(conn, query.bind(patience)).await
            }
        }
    }
}

impl Postgres {
    /// One round trip, and what `read` makes of the last column of the first row, if there is one.
    async fn fetch_one<T: Send>(
        &self,
        conn: &mut Conn,
        query: Query<'_>,
        read: impl FnOnce(Option<&str>) -> Result<T> + Send,
    ) -> Result<Option<T>> {
        let query = query.bind(conn.next());
        // Not as a stream of rows: the driver's takes half as many instructions again.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await;
        let Some(row) = row.map_err(|error| self.explained(error))? else { return Ok(None) };
        legible(|| {
            conn.check(&row)?;
            read(get(&row, 2)?)
        })
        .map(Some)
    }

    /// Asks for something to be done.
    async fn done(&self, conn: &mut Conn, query: Query<'_>) -> Result<Answer> {
        let done = |word: Option<&str>| match word {
            None => Ok(Answer::No),
            Some("yes") => Ok(Answer::Yes),
            Some("late") => Err(Error::new(ErrorKind::Timeout, "the session does not end")),
            Some(_) => Err(strange()),
        };
        Ok(self.fetch_one(conn, query, done).await?.unwrap_or(Answer::No))
    }

    async fn look(&self, conn: &mut Conn, query: Query<'_>) -> Result<Answer> {
        let query = query.bind(conn.next());
        let rows = unharmed(query.fetch_all(&mut conn.conn)).await.map_err(|error| self.explained(error))?;
        let mut seen = Vec::new();
        for row in &rows {
            let holder = legible(|| {
                conn.check(row)?;
                Ok(holder(get(row, 1)?, get(row, 2)?))
            })?;
            seen.extend(holder);
        }
        Ok(Answer::Holders(seen))
    }
}

/// A holder by the mode of its lock and the name of its session.
fn holder(lock: Option<&str>, name: Option<&str>) -> Option<Seen> {
    let (token, _, note) = numbered(name?)?;
    let mode = if lock? == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
    Some(Seen { token, mode, note: note.to_owned() })
}

/// The number that a session shows for what was wished for.
fn granted(name: Option<&str>, wish: &Wish) -> Result<FencingToken> {
    match name.and_then(numbered) {
        Some((token, whose, _)) if whose == wish.tag.as_str() => Ok(token),
        _ => Err(strange()),
    }
}

/// What follows the number in a session's name.
fn label(wish: &Wish) -> String {
    let (tag, note) = (wish.tag.as_str(), wish.note.as_str());
    let mut label = String::with_capacity(tag.len() + note.len() + 2);
    label.push(' ');
    label.push_str(tag);
    label.push(' ');
    push_plain(&mut label, note);
    label
}

/// The number, the tag and the note in a session's name.
fn numbered(name: &str) -> Option<(FencingToken, &str, &str)> {
    let (number, rest) = name.strip_prefix("onelock ")?.split_once(' ')?;
    let token = FencingToken::new(number.parse().ok()?).ok()?;
    let (tag, note) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((token, tag, note))
}

fn shared(mode: Mode) -> usize {
    usize::from(mode == Mode::Shared)
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
        let read = |name| numbered(name).map(|(token, tag, note)| (token.get(), tag, note));
        assert_eq!(
            read("onelock 42 abcdefghijk host:1 and more"),
            Some((42, "abcdefghijk", "host:1 and more"))
        );
        assert_eq!(read("onelock 42 abcdefghijk"), Some((42, "abcdefghijk", "")));
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
