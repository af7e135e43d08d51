//! What a session is asked, and what its answers mean.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{EntryView, Error, ErrorKind, FencingToken, Mode, Result, TokenEpoch};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgArguments, PgRow};
use tokio::time::Instant;

use super::session::{Conn, Postgres, get, pooled, strange};
use crate::postgres::error::is_full;
use crate::session::dialect::{Answer, Ask, Dialect, Id, Wish};
use crate::unharmed::{legible, unharmed};

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, PgArguments>;

/// The requests. In a session's name stands what it holds: `onelock <number> <tag> <note>`.
#[derive(Debug)]
pub(super) struct Sql {
    /// By whether it waits, and whether it shares.
    take: [[Arc<str>; 2]; 2],
    give: [Arc<str>; 2],
    beat: Arc<str>,
    waiting: Arc<str>,
    holders: Arc<str>,
    end: Arc<str>,
    evict: Arc<str>,
    /// Which session this is, and whether its server takes writes.
    pub(super) begin: Arc<str>,
    epoch: Arc<str>,
}

impl Sql {
    pub(super) fn new(schema: &str) -> Self {
        let schema = format!("\"{schema}\"");
        let fill = |sql: &str, what: &str, with: &str| {
            let lines: Vec<_> = sql.lines().filter(|line| !line.starts_with("--")).collect();
            lines.join("\n").replace("{schema}", &schema).replace(what, with.trim_end()).into()
        };
        let plain = |sql| fill(sql, "{}", "");
        let holders = |sql| fill(sql, "{holders}", include_str!("sql/of_key.sql"));
        let [one, many] = ["pg_advisory_unlock", "pg_advisory_unlock_shared"];
        let take = |taken: &str, unlock: &str| {
            fill(&include_str!("sql/take.sql").replace("{unlock}", unlock), "{taken}", taken)
        };
        let give = |unlock| fill(include_str!("sql/give.sql"), "{unlock}", unlock);
        Self {
            take: [
                [take("pg_try_advisory_lock($1)", one), take("pg_try_advisory_lock_shared($1)", many)],
                [
                    take("pg_advisory_lock($1) IS NOT NULL", one),
                    take("pg_advisory_lock_shared($1) IS NOT NULL", many),
                ],
            ],
            give: [give(one), give(many)],
            beat: plain(include_str!("sql/beat.sql")),
            waiting: plain(include_str!("sql/waiting.sql")),
            holders: holders(include_str!("sql/holders.sql")),
            end: plain(include_str!("sql/end.sql")),
            evict: holders(include_str!("sql/evict.sql")),
            begin: plain(include_str!("sql/begin.sql")),
            epoch: plain(include_str!("sql/epoch.sql")),
        }
    }

    /// What every lock asks for: it takes one round trip from the first time on.
    pub(super) fn prepared(&self) -> [&Arc<str>; 4] {
        [&self.take[0][0], &self.take[1][0], &self.give[0], &self.beat]
    }
}

impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";

    async fn connect(&self) -> Result<Conn> {
        let conn = self.reach().await?;
        self.set_up(conn, self.request_timeout).await
    }

    fn id(conn: &Conn) -> Id {
        conn.id
    }

    fn is_full(error: &Error) -> bool {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
        source.is_some_and(is_full)
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        let patience = i64::try_from(self.request_timeout.as_millis()).unwrap_or(i64::MAX);
        let query = |sql: &Arc<str>| sqlx::query(AssertSqlSafe(Arc::clone(sql)));
        match ask {
            Ask::Take { wish, wait, idle } => {
                let epoch = wish.epoch;
                if epoch > conn.epoch {
                    let begin = query(&self.sql.epoch).bind(i32::from(u16::from(epoch)));
                    Box::pin(self.fetch(conn, begin, |_| Ok(()))).await?;
                    conn.epoch = epoch;
                }
                let sql = &self.sql.take[usize::from(*wait)][shared(wish.mode)];
                let query = query(sql).bind(wish.key.short()).bind(label(wish)).bind(idle.map(millis));
                let query = query.bind(i32::from(u16::from(epoch)));
                let own = conn.id;
                let taken = |row: &PgRow| {
                    answered_by(own, row)?;
                    epoch.check(TokenEpoch::of(get::<Option<i64>>(row, 3)?.unwrap_or(0)))?;
                    let name = get::<Option<&str>>(row, 2)?;
                    name.map(|name| numbered(name).map(|(token, _)| token).ok_or_else(strange)).transpose()
                };
                Ok(Answer::Taken(self.fetch(conn, query, taken).await?.ok_or_else(strange)?))
            }
            Ask::Give { key, mode } => {
                self.done(conn, query(&self.sql.give[shared(*mode)]).bind(key.short())).await
            }
            Ask::Beat { idle } => self.done(conn, query(&self.sql.beat).bind(idle.map(millis))).await,
            Ask::Waiting(processes) => {
                let query = query(&self.sql.waiting).bind(processes.clone());
                Ok(Answer::Waiting(self.fetch_all(conn, query, |row| get(row, 0)).await?))
            }
            Ask::Holders(key) => {
                let query = query(&self.sql.holders).bind(key.short());
                let seen = self.fetch_all(conn, query, |row| Ok(holder(get(row, 0)?, get(row, 1)?))).await?;
                Ok(Answer::Holders(seen.into_iter().flatten().collect()))
            }
            Ask::End(id) => {
                let end = || query(&self.sql.end).bind(id.process).bind(id.born).bind(patience);
                self.ended(conn, end).await
            }
            Ask::Evict(key, token) => {
                let evict = || query(&self.sql.evict).bind(key.short()).bind(token.to_string());
                self.ended(conn, || evict().bind(patience).bind(2)).await
            }
            Ask::Disown(key, tag) => {
                let disown = || query(&self.sql.evict).bind(key.short()).bind(tag.as_str().to_owned());
                self.ended(conn, || disown().bind(patience).bind(3)).await
            }
        }
    }
}

impl Postgres {
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

    /// Whether there was a session to end; it has ended when this is answered. The server also says no to who asks for the end of a
    /// session that is ending by itself, so that is asked again until the session is gone.
    async fn ended(&self, conn: &mut Conn, query: impl Fn() -> Query<'static> + Send) -> Result<Answer> {
        let end = Instant::now() + self.request_timeout;
        let (mut was_there, mut pause) = (false, Duration::from_millis(1));
        while let Some(ended) = self.fetch(conn, query(), |row| get(row, 0)).await? {
            was_there = true;
            if ended {
                break;
            }
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Timeout, "the session does not end"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(Answer::Done(was_there))
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
    [" ", wish.tag.as_str(), " "].into_iter().flat_map(str::chars).chain(note).collect()
}

/// The number and the note in a session's name.
fn numbered(name: &str) -> Option<(FencingToken, &str)> {
    let (number, rest) = name.strip_prefix("onelock ")?.split_once(' ')?;
    let (_tag, note) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((FencingToken::new(number.parse().ok()?).ok()?, note))
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
