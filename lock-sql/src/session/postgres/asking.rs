//! What a session is asked, and what its answers mean.

use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Capabilities, EntryView, Error, ErrorKind, FencingToken, Mode, Result, TokenEpoch};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor as _, FromRow, SqlSafeStr as _};

use crate::hosts::bad;
use crate::pool::{self, Fault};
use crate::postgres::PostgresConfig;
use crate::postgres::connect::{connect, raw};
use crate::postgres::error::{denied, fault, state};
use crate::session::dialect::{Answer, Ask, Dialect, Id, Whose, Wish};
use crate::session::names::{Key, short, tag};
use crate::session::sessions::lost;
use crate::unharmed::unharmed;

type Query = sqlx::query::Query<'static, sqlx::Postgres, PgArguments>;

/// What every lock asks for. In a session's name stands what it holds: `onelock <number> <tag> <note>`.
const TAKE: &str = include_str!("sql/take.sql");
const BEAT: &str = include_str!("sql/beat.sql");
const GIVE: &str = include_str!("sql/give.sql");

#[derive(Debug)]
pub(super) struct Postgres(pub(super) PostgresConfig);

/// A connection, and the largest token epoch that it has begun.
pub(super) struct Conn {
    conn: PgConnection,
    epoch: TokenEpoch,
}

#[async_trait]
impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";
    const CAPABILITIES: Capabilities = super::CAPABILITIES;
    const FAULT: fn(&sqlx::Error) -> Fault = fault;

    async fn connect(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.0).await?;
        let begin = async {
            raw::<()>(&mut conn, include_str!("sql/settings.sql")).await?;
            let begun = raw(&mut conn, self.filled(include_str!("sql/begin.sql")).0).await?;
            // What every lock asks for takes one round trip from the first time on.
            for text in [TAKE, BEAT, GIVE] {
                conn.prepare(self.filled(text).into_sql_str()).await?;
            }
            Ok(begun)
        };
        let begun = unharmed(begin).await.map_err(|error| self.explained(error))?;
        let (standby, process, born): (bool, i64, i64) = begun;
        if standby {
            return Err(Error::new(ErrorKind::Unavailable, "the server takes no writes: is it a standby?"));
        }
        Ok((Conn { conn, epoch: TokenEpoch::default() }, Id { process, born }))
    }

    async fn ask(&self, conn: &mut Conn, wish: &Wish, ask: Ask, idle: Option<Duration>) -> Result<Answer> {
        let key = short(&wish.key);
        let epoch = wish.request.epoch;
        let idle = idle.map(millis);
        let shared = i32::from(wish.request.mode == Mode::Shared);
        let wait = match ask {
            Ask::Take => 0,
            Ask::Queue => 2,
            Ask::Beat(_) => return self.fetch(conn, self.query(BEAT).bind(idle)).await,
            Ask::Give => return self.fetch(conn, self.query(GIVE).bind(key).bind(shared)).await,
        };
        let high = i32::from(u16::from(epoch));
        if epoch > conn.epoch {
            let begin = self.query(include_str!("sql/epoch.sql")).bind(high);
            Box::pin(self.fetch::<(bool,)>(conn, begin)).await?;
            conn.epoch = epoch;
        }
        let take = self.query(TAKE).bind(key).bind(label(wish)).bind(idle).bind(high).bind(shared + wait);
        let (process, number, held): (_, Option<i64>, Option<String>) = self.fetch(conn, take).await?;
        let drawn = TokenEpoch::of(number.unwrap_or(0));
        epoch.check(drawn)?;
        if drawn < epoch {
            let text = "the sequence of the numbers was set back, as by a restore; raise `token_epoch`";
            return Err(bad(text));
        }
        Ok((process, number.filter(|_| held.is_some())))
    }

    async fn waiting(&self, conn: &mut Conn, some: Vec<(Id, Key)>) -> Result<Vec<Id>> {
        let (pids, born): (Vec<_>, Vec<_>) = some.iter().map(|(id, _)| (id.process, id.born)).unzip();
        let waiting = self.query(include_str!("sql/waiting.sql")).bind(pids).bind(born);
        let (pids, born): (Vec<_>, Vec<_>) = self.fetch(conn, waiting).await?;
        Ok(pids.into_iter().zip(born).map(|(process, born)| Id { process, born }).collect())
    }

    async fn holders(&self, conn: &mut Conn, key: Key) -> Result<Vec<EntryView>> {
        let holders = self.query(include_str!("sql/holders.sql")).bind(short(&key));
        let (locks, names): (Vec<String>, Vec<String>) = self.fetch(conn, holders).await?;
        Ok(locks.iter().zip(&names).filter_map(|(lock, name)| holder(lock, name)).collect())
    }

    async fn end(&self, conn: &mut Conn, whose: Whose) -> Result<bool> {
        let holder = |key, part: String, which: i32| {
            self.query(include_str!("sql/evict.sql")).bind(short(&key)).bind(part).bind(which)
        };
        let end = match whose {
            Whose::Session(id) => self.query(include_str!("sql/end.sql")).bind(id.process).bind(id.born),
            Whose::Numbered(key, token) => holder(key, token.to_string(), 2),
            Whose::Of(key, tag) => holder(key, tag, 3),
        };
        let (ended,): (bool,) = self.fetch(conn, end).await?;
        Ok(ended)
    }
}

impl Postgres {
    fn query(&self, text: &str) -> Query {
        sqlx::query(self.filled(text))
    }

    fn filled(&self, text: &str) -> AssertSqlSafe<String> {
        let text = text.replace("{holders}", include_str!("sql/of_key.sql").trim_end());
        AssertSqlSafe(text.replace("{schema}", &format!("\"{}\"", self.0.namespace)))
    }

    /// One round trip, and the values of the only row.
    async fn fetch<T: for<'r> FromRow<'r, PgRow>>(&self, conn: &mut Conn, query: Query) -> Result<T> {
        // Not as a stream of rows: the driver's takes half as many instructions again.
        let row = unharmed(query.fetch_optional(&mut conn.conn)).await;
        let row = row.map_err(|error| self.explained(error))?;
        pool::Answer::new(row.into_iter().collect(), 0).one()
    }

    fn explained(&self, error: sqlx::Error) -> Error {
        // By somebody's order, or for having been idle.
        if matches!(state(&error).as_deref(), Some("57P01" | "57P05")) {
            return lost(error);
        }
        let schema = &self.0.namespace;
        let needs = format!(
            "USAGE on schema {schema} and on sequence {schema}.number, EXECUTE on function \
             {schema}.begin_session, and the role of the session that is to be ended"
        );
        denied(error, &needs)
    }
}

/// A holder by the mode of its lock and the name of its session.
fn holder(lock: &str, name: &str) -> Option<EntryView> {
    let mut parts = name.strip_prefix("onelock ")?.splitn(3, ' ');
    let (number, _tag) = (parts.next()?.parse().ok()?, parts.next()?);
    let mode = if lock == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
    Some(EntryView::new(FencingToken::new(number).ok()?, mode, parts.next().unwrap_or_default()))
}

/// What follows the number in a session's name; servers show printable ASCII of it.
fn label(wish: &Wish) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let note: String = wish.request.note.as_str().chars().map(plain).collect();
    format!(" {} {note}", tag(wish.request.holder))
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
        let read = |name| holder("ExclusiveLock", name).map(|seen| (seen.token.get(), seen.note));
        assert_eq!(read("onelock 42 abc host:1 and more"), Some((42, "host:1 and more".into())));
        assert_eq!(read("onelock 42 abc"), Some((42, "".into())));
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
