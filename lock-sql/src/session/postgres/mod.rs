//! Session locks of PostgreSQL: `pg_advisory_lock`.
//!
//! A session holds one lock at a time, and says which in its application name from the moment it has its number until just
//! before it gives the lock back; that is what others see of it. A session that waits holds nothing, so the server's deadlock
//! detector never finds a circle here and never changes the order of the queue.

mod opening;
mod sql;

use std::sync::Arc;
use std::time::Duration;

use lock_core::driver::Opening;
use lock_core::url::host_port;
use lock_core::{
    Backend, Capabilities, Clock, Driver, Error, ErrorKind, FencingToken, Info, Mode, OptionSpec, Result,
    StoreUrl,
};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _, SqlSafeStr as _};

use super::dialect::{Answer, Ask, Dialect, Id, Seen, Session, Whom};
use super::names::Key;
use super::{CONNECTIONS, SessionStore, Setup, connections};
use crate::postgres::PostgresConfig;
use crate::postgres::error::{denied, explain, state};
use crate::unharmed::{legible, unharmed};
pub use opening::migration;
use opening::{OPENING, checked, ensure, refuse_pooler};
use sql::Sql;

/// Session locks in PostgreSQL: `postgres+session://user:password@host:5432/database`.
pub const POSTGRES_SESSION_DRIVER: Driver = Driver {
    name: "postgres-session",
    schemes: &["postgres+session", "postgresql+session"],
    example: "postgres+session://app:password@db.internal/app?ttl=5s",
    about: "advisory locks of PostgreSQL sessions: fast, nothing is written down",
    capabilities: CAPABILITIES,
    options: OPTIONS,
    open,
    gate: lock_core::quorum::no_gate,
};

const CAPABILITIES: Capabilities = {
    let mut caps = super::CAPABILITIES;
    // What the server's setting takes.
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

const OPTIONS: &[OptionSpec] = &[
    CONNECTIONS,
    OptionSpec { name: "schema", default: SCHEMA, about: "the schema of the counter" },
    OptionSpec { name: "migrate", default: "true", about: "make the schema when it is missing" },
    OptionSpec { name: "connect_timeout", default: "5s", about: "how long reaching the server may take" },
    OptionSpec { name: "request_timeout", default: "5s", about: "how long the server may take to answer" },
    OptionSpec {
        name: "sslmode",
        default: "prefer",
        about: "disable, prefer, require, verify-ca or verify-full",
    },
    OptionSpec {
        name: "sslrootcert",
        default: "the system's",
        about: "a PEM file with the authorities to trust",
    },
    OptionSpec { name: "sslcert", default: "none", about: "a PEM file with the client's certificate" },
    OptionSpec { name: "sslkey", default: "none", about: "a PEM file with the client's key" },
];

const SCHEMA: &str = "onelock_session";
fn open(mut url: StoreUrl, _clock: Arc<dyn Clock>) -> Opening {
    Box::pin(async move {
        url.check_options(&[OPTIONS])?;
        let connections = connections(&mut url)?;
        let schema: Option<String> = url.take("schema")?;
        url.set("schema", schema.unwrap_or_else(|| SCHEMA.to_owned()));
        let config = PostgresConfig::from_url(url)?;
        let backend = open_with(config, connections).await?;
        Ok(Arc::new(backend) as Arc<dyn Backend>)
    })
}

async fn open_with(config: PostgresConfig, connections: u16) -> Result<SessionStore<Postgres>> {
    let database = config.database.clone().unwrap_or_default();
    let address = format!("{}://{}/{database}", Postgres::SCHEME, host_port(&config.host, Some(config.port)));
    let opened = async {
        let mut dialect = Postgres::new(&config);
        let mut first = dialect.reach().await?;
        let version = checked(&mut first).await?;
        refuse_pooler(&mut first, &mut dialect.reach().await?).await?;
        ensure(&mut first, &config).await?;
        dialect.settings(&mut first, version).await?;
        let first = dialect.set_up(first, OPENING).await?;
        let side = dialect.set_up(dialect.reach().await?, OPENING).await?;
        Ok((dialect, first, side))
    };
    let (dialect, first, side) =
        opened.await.map_err(|error: Error| error.during("open").at(address.clone()))?;
    let setup = Setup {
        info: Info { scheme: Postgres::SCHEME.into(), address },
        capabilities: CAPABILITIES,
        space: config.schema.clone(),
        connections,
        request_timeout: config.request_timeout,
    };
    Ok(SessionStore::new(setup, dialect, first, side))
}

#[derive(Debug)]
struct Postgres {
    options: Hidden,
    schema: String,
    connect_timeout: Duration,
    request_timeout: Duration,
    /// What every session is told first.
    settings: Arc<str>,
    sql: Sql,
}

/// What the driver takes; it would show the password.
struct Hidden(PgConnectOptions);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Postgres {
    fn new(config: &PostgresConfig) -> Self {
        Self {
            options: Hidden(config.options()),
            schema: config.schema.clone(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            settings: "".into(),
            sql: Sql::new(&config.schema),
        }
    }

    /// A connection in which nothing is set yet.
    async fn reach(&self) -> Result<PgConnection> {
        match tokio::time::timeout(self.connect_timeout, unharmed(self.options.0.connect())).await {
            Ok(conn) => conn.map_err(|error| denied(error, "CONNECT on the database")),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server could not be reached in time")),
        }
    }

    /// Finds out what this server lets a session set.
    async fn settings(&mut self, conn: &mut PgConnection, version: i32) -> Result<()> {
        let mut all = vec![
            ("application_name", "onelock"),
            // Nothing here needs the disk: what a crash forgets of the numbers is less than the lift after it.
            ("synchronous_commit", "off"),
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "off"),
            // What the role or the database says is for other work: here a wait ends with the lock, and the lease is ours.
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("idle_session_timeout", "0"),
            // A client that has gone silent: for sessions that wait, whose time of idleness does not run.
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "3"),
            ("tcp_keepalives_count", "3"),
        ];
        if version >= 170_000 {
            all.push(("transaction_timeout", "0"));
        }
        // A server on a system that cannot see the other end go refuses it: there a dead waiter stays until its turn.
        let check = ("client_connection_check_interval", "500ms");
        let told = format!("SELECT set_config('{}', '{}', false)", check.0, check.1);
        if ask_raw(conn, &told, OPENING).await.is_ok() {
            all.push(check);
        }
        let each: Vec<_> =
            all.iter().map(|(name, value)| format!("set_config('{name}', '{value}', false)")).collect();
        self.settings = format!("SELECT {}", each.join(", ")).into();
        Ok(())
    }

    async fn set_up(&self, mut conn: PgConnection, limit: Duration) -> Result<Session<Conn>> {
        ask_raw(&mut conn, &self.settings, limit).await?;
        let rows = ask_raw(&mut conn, &self.sql.begin, limit).await?;
        let (standby, pid, born): (bool, i32, i64) = match &rows[..] {
            [row] => legible(|| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?)))?,
            _ => return Err(strange()),
        };
        if standby {
            return Err(Error::new(ErrorKind::Unavailable, "the server takes no writes: is it a standby?"));
        }
        // What every lock asks for takes one round trip from the first time on.
        let prepare = async {
            for sql in [&self.sql.take[0][0], &self.sql.take[1][0], &self.sql.give[0], &self.sql.beat] {
                conn.prepare(AssertSqlSafe(Arc::clone(sql)).into_sql_str()).await?;
            }
            Ok(())
        };
        match tokio::time::timeout(limit, unharmed(prepare)).await {
            Ok(done) => done.map_err(|error| self.explained(error))?,
            Err(_) => return Err(Error::new(ErrorKind::Timeout, "the server did not answer in time")),
        }
        let id = Id { process: pid.into(), born };
        Ok(Session { conn: Conn { conn, pid: pid.into(), asked: 0 }, id, idle: Duration::ZERO })
    }

    fn explained(&self, error: sqlx::Error) -> Error {
        // By somebody's order, or for having been idle.
        if matches!(state(&error).as_deref(), Some("57P01" | "57P05")) {
            return Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(error);
        }
        let schema = &self.schema;
        denied(
            error,
            &format!(
                "USAGE on schema {schema} and on sequence {schema}.number, EXECUTE on function \
                 {schema}.begin_session, and the role of the session that is to be ended"
            ),
        )
    }

    /// One round trip; the rows' last column, with the one before it. The first says which session answers what question.
    async fn fetch<'q>(
        &self,
        conn: &mut Conn,
        query: sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<(Option<String>, Option<String>)>> {
        conn.asked += 1;
        let query = query.bind(conn.asked);
        let rows = unharmed(query.fetch_all(&mut conn.conn)).await.map_err(|error| self.explained(error))?;
        legible(|| {
            rows.iter()
                .map(|row| {
                    // The lock belongs to the session: another one, by a pooler, is not ours. Nor is the answer to another
                    // question, by a connection that is out of step.
                    let whose: i64 = get(row, 0)?;
                    if whose == conn.pid + conn.asked {
                        Ok((get(row, 1)?, get(row, 2)?))
                    } else {
                        Err(pooled())
                    }
                })
                .collect()
        })
    }
}

/// A connection, and the server's process at its other end.
#[derive(Debug)]
struct Conn {
    conn: PgConnection,
    pid: i64,
    /// How many questions it was asked.
    asked: i64,
}

impl Dialect for Postgres {
    type Conn = Conn;

    const SCHEME: &'static str = "postgres+session";

    async fn connect(&self) -> Result<Session<Conn>> {
        let conn = self.reach().await?;
        self.set_up(conn, self.request_timeout).await
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        let patience = i64::try_from(self.request_timeout.as_millis()).unwrap_or(i64::MAX);
        let query = |sql: &Arc<str>| sqlx::query(AssertSqlSafe(Arc::clone(sql)));
        match ask {
            Ask::Take { key, mode, wait, tag, note, idle } => {
                let sql = &self.sql.take[usize::from(*wait)][shared(*mode)];
                let label = format!(" {tag} {note}");
                let query = query(sql).bind(key.short()).bind(label).bind(idle.map(millis));
                let rows = self.fetch(conn, query).await?;
                match &rows[..] {
                    [(_, None)] if !wait => Ok(Answer::No),
                    [(_, Some(name))] => match numbered(name) {
                        Some((token, whose, _)) if whose == tag => Ok(Answer::Taken(token)),
                        _ => Err(strange()),
                    },
                    _ => Err(strange()),
                }
            }
            Ask::Give { key, mode } => {
                answered(self.fetch(conn, query(&self.sql.give[shared(*mode)]).bind(key.short())).await?)
            }
            Ask::Beat { idle } => {
                answered(self.fetch(conn, query(&self.sql.beat).bind(idle.map(millis))).await?)
            }
            Ask::Waits(id) => answered(self.fetch(conn, query(&self.sql.waits).bind(id.process)).await?),
            Ask::Look(key) => self.look(conn, query(&self.sql.look), *key).await,
            Ask::End(Whom::Session(id)) => {
                let query = query(&self.sql.end_session).bind(id.process).bind(id.born).bind(patience);
                answered(self.fetch(conn, query).await?)
            }
            Ask::End(Whom::Tag(key, tag)) => {
                let query = query(&self.sql.end_holder).bind(key.short()).bind(3).bind(tag.clone());
                answered(self.fetch(conn, query.bind(patience)).await?)
            }
            Ask::End(Whom::Token(key, token)) => {
                let query = query(&self.sql.end_holder).bind(key.short()).bind(2).bind(token.to_string());
                answered(self.fetch(conn, query.bind(patience)).await?)
            }
        }
    }
}

impl Postgres {
    async fn look(
        &self,
        conn: &mut Conn,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
        key: Key,
    ) -> Result<Answer> {
        let rows = self.fetch(conn, query.bind(key.short())).await?;
        let seen = rows.into_iter().filter_map(|(lock, name)| {
            let name = name?;
            let (token, _, note) = numbered(&name)?;
            let mode = if lock? == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
            Some(Seen { token, mode, note: note.to_owned() })
        });
        Ok(Answer::Holders(seen.collect()))
    }
}

/// What the last column says: nothing, or that it is done.
fn answered(rows: Vec<(Option<String>, Option<String>)>) -> Result<Answer> {
    match rows.first() {
        None | Some((_, None)) => Ok(Answer::No),
        Some((_, Some(word))) => match word.as_str() {
            "yes" => Ok(Answer::Yes),
            "late" => Err(Error::new(ErrorKind::Timeout, "the session does not end")),
            _ => Err(strange()),
        },
    }
}

/// The number, the tag and the note in a session's name.
fn numbered(name: &str) -> Option<(FencingToken, &str, &str)> {
    let mut words = name.splitn(4, ' ');
    let ours = words.next() == Some("onelock");
    let token = words.next()?.parse().ok().and_then(|number| FencingToken::new(number).ok())?;
    let tag = words.next()?;
    ours.then(|| (token, tag, words.next().unwrap_or_default()))
}

fn shared(mode: Mode) -> usize {
    usize::from(mode == Mode::Shared)
}

fn millis(time: Duration) -> String {
    // Up: a part of a millisecond must not become no limit at all.
    time.as_nanos().div_ceil(1_000_000).to_string()
}

fn get<'r, T>(row: &'r PgRow, column: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column).map_err(explain)
}

fn strange() -> Error {
    Error::new(ErrorKind::Protocol, "the server answered something else than asked")
}

fn pooled() -> Error {
    let text = "behind a pooler that gives each transaction another session there are no session locks; use a \
                direct connection, or postgres://";
    Error::new(ErrorKind::Unsupported, text)
}

/// One message that needs nothing prepared.
async fn ask_raw(conn: &mut PgConnection, sql: &str, limit: Duration) -> Result<Vec<PgRow>> {
    let asked = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())));
    match tokio::time::timeout(limit, unharmed(asked)).await {
        Ok(rows) => rows.map_err(|error| denied(error, "the rights on the store's page")),
        Err(_) => Err(Error::new(ErrorKind::Timeout, "the server did not answer in time")),
    }
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
        assert!(CAPABILITIES.max_lease.as_millis() < i32::MAX as u128);
    }

    #[tokio::test]
    async fn bad_urls_are_refused_before_anything_is_sent() {
        for url in [
            "postgres+session://h/db?connections=0",
            "postgres+session://h/db?connections=10001",
            "postgres+session://h/db?schema=a.b",
            "postgres+session://h/db?durability=relaxed",
            "postgres+session://",
        ] {
            let opened = open(url.parse().unwrap(), Arc::new(lock_core::BootClock)).await;
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
