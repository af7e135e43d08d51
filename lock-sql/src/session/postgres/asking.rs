//! What a session is asked, and what its answers mean.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Capabilities, EntryView, FencingToken, Mode, Result, TokenEpoch};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgArguments, PgRow};

use super::session::{Conn, Postgres, get, pooled};
use crate::postgres::error::is_full;
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::Key;
use crate::session::sessions::strange;
use crate::unharmed::{legible, unharmed};

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, PgArguments>;

/// What every lock asks for. In a session's name stands what it holds: `onelock <number> <tag> <note>`.
#[derive(Debug)]
pub(super) struct Sql {
    schema: String,
    take: Arc<str>,
    beat: Arc<str>,
    give: Arc<str>,
}

impl Sql {
    pub(super) fn new(schema: &str) -> Self {
        let schema = format!("\"{schema}\"");
        let fill = |sql| filled(sql, &schema).into();
        let take = fill(include_str!("sql/take.sql"));
        let (beat, give) = (fill(include_str!("sql/beat.sql")), fill(include_str!("sql/give.sql")));
        Self { schema, take, beat, give }
    }

    /// It takes one round trip from the first time on.
    pub(super) fn prepared(&self) -> [&Arc<str>; 3] {
        [&self.take, &self.beat, &self.give]
    }

    /// What is rare.
    pub(super) fn rare(&self, sql: &str) -> String {
        filled(sql, &self.schema)
    }
}

fn filled(sql: &str, schema: &str) -> String {
    let lines: Vec<_> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    lines
        .join("\n")
        .replace("{schema}", schema)
        .replace("{holders}", include_str!("sql/of_key.sql").trim_end())
}

fn query(sql: &Arc<str>) -> Query<'static> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;

    async fn connect(&self) -> Result<Conn> {
        let conn = self.reach().await?;
        self.set_up(conn, self.request_timeout).await
    }

    fn id(conn: &Conn) -> Id {
        conn.id
    }

    fn is_full(error: &sqlx::Error) -> bool {
        is_full(error)
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask, idle: Option<Duration>) -> Result<Answer> {
        match ask {
            Ask::Take(wish, wait) => self.take(conn, wish, *wait, idle).await,
            Ask::Give(wish) => {
                let give = query(&self.sql.give).bind(wish.key.short()).bind(i32::from(shared(wish)));
                self.done(conn, give).await
            }
            Ask::Beat(_) => self.done(conn, query(&self.sql.beat).bind(idle.map(millis))).await,
        }
    }

    async fn waiting(&self, conn: &mut Conn, some: &[(i64, Key)]) -> Result<Vec<i64>> {
        let some: Vec<_> = some.iter().map(|(process, _)| *process).collect();
        let waiting = self.rare(include_str!("sql/waiting.sql")).bind(some);
        self.fetch_all(conn, waiting, |row| get(row, 0)).await
    }

    async fn holders(&self, conn: &mut Conn, key: &Key) -> Result<Vec<EntryView>> {
        let holders = self.rare(include_str!("sql/holders.sql")).bind(key.short());
        let seen = self.fetch_all(conn, holders, |row| Ok(holder(get(row, 0)?, get(row, 1)?))).await?;
        Ok(seen.into_iter().flatten().collect())
    }

    async fn end(&self, conn: &mut Conn, whose: &Whose) -> Result<bool> {
        let holder = |key: &Key, part: String, which: i32| {
            self.rare(include_str!("sql/evict.sql")).bind(key.short()).bind(part).bind(which)
        };
        let end = match whose {
            Whose::Session(id) => self.rare(include_str!("sql/end.sql")).bind(id.process).bind(id.born),
            Whose::Numbered(key, token) => holder(key, token.to_string(), 2),
            Whose::Of(key, tag) => holder(key, tag.clone(), 3),
        };
        Ok(self.fetch(conn, end, |_| Ok(())).await?.is_some())
    }
}

impl Postgres {
    fn rare(&self, sql: &str) -> Query<'static> {
        sqlx::query(AssertSqlSafe(self.sql.rare(sql)))
    }

    async fn take(&self, conn: &mut Conn, wish: &Wish, wait: bool, idle: Option<Duration>) -> Result<Answer> {
        let epoch = i32::from(u16::from(wish.epoch));
        if wish.epoch > conn.epoch {
            let begin = self.rare(include_str!("sql/epoch.sql")).bind(epoch);
            Box::pin(self.fetch(conn, begin, |_| Ok(()))).await?;
            conn.epoch = wish.epoch;
        }
        let take = query(&self.sql.take).bind(wish.key.short()).bind(label(wish)).bind(idle.map(millis));
        let take = take.bind(epoch).bind(i32::from(shared(wish)) + 2 * i32::from(wait));
        let own = conn.id;
        let taken = |row: &PgRow| {
            answered_by(own, row)?;
            wish.epoch.check(TokenEpoch::of(get::<Option<i64>>(row, 3)?.unwrap_or(0)))?;
            let name = get::<Option<&str>>(row, 2)?;
            name.map(|name| numbered(name).map(|(token, _)| token).ok_or_else(strange)).transpose()
        };
        Ok(Answer::Taken(self.fetch(conn, take, taken).await?.ok_or_else(strange)?))
    }

    /// One round trip, and what `read` makes of the first row, if there is one.
    async fn fetch<T: Send>(
        &self,
        conn: &mut Conn,
        query: Query<'_>,
        read: impl FnOnce(&PgRow) -> Result<T> + Send,
    ) -> Result<Option<T>> {
        // Not as a stream of rows: the driver's takes half as many instructions again.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await;
        row.map_err(|error| self.explained(error))?.map(|row| legible(|| read(&row))).transpose()
    }

    async fn fetch_all<T: Send>(
        &self,
        conn: &mut Conn,
        query: Query<'_>,
        read: impl Fn(&PgRow) -> Result<T> + Send,
    ) -> Result<Vec<T>> {
        let rows = unharmed(query.fetch_all(&mut conn.conn)).await.map_err(|error| self.explained(error))?;
        legible(|| rows.iter().map(&read).collect())
    }

    async fn done(&self, conn: &mut Conn, query: Query<'_>) -> Result<Answer> {
        let own = conn.id;
        let done = self.fetch(conn, query, |row| answered_by(own, row).and_then(|()| get(row, 1))).await?;
        Ok(Answer::Done(done.ok_or_else(strange)?))
    }
}

/// The lock belongs to the session: another one, by a pooler, is not ours.
fn answered_by(own: Id, row: &PgRow) -> Result<()> {
    if i64::from(get::<i32>(row, 0)?) == own.process { Ok(()) } else { Err(pooled()) }
}

/// A holder by the mode of its lock and the name of its session.
fn holder(lock: Option<&str>, name: Option<&str>) -> Option<EntryView> {
    let (token, note) = numbered(name?)?;
    let mode = if lock? == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
    Some(EntryView::new(token, mode, note))
}

/// What follows the number in a session's name; servers show printable ASCII of it.
fn label(wish: &Wish) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let note = wish.note.as_str().chars().map(plain);
    [" ", &wish.tag, " "].into_iter().flat_map(str::chars).chain(note).collect()
}

/// The number and the note in a session's name.
fn numbered(name: &str) -> Option<(FencingToken, &str)> {
    let (number, rest) = name.strip_prefix("onelock ")?.split_once(' ')?;
    let (_tag, note) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((FencingToken::new(number.parse().ok()?).ok()?, note))
}

fn shared(wish: &Wish) -> bool {
    wish.mode == Mode::Shared
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
