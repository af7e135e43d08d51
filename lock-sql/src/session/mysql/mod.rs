//! Session locks of MySQL and MariaDB: `GET_LOCK`.
//!
//! A session takes one lock of the store at a time, and waits only while it holds nothing, so the server's deadlock detector never
//! finds a circle here. Once it holds, it takes a few more of these locks that nobody else asks for: their names spell the number it
//! drew and whose it is, which is all that others can learn of a session without rights, tables or commits.

mod life;
mod look;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::driver::Opening;
use lock_core::url::host_port;
use lock_core::{
    Backend, Capabilities, Clock, Driver, Error, ErrorKind, FencingToken, Info, OptionSpec, Result, StoreUrl,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{ConnectOptions as _, Row as _};

use super::dialect::{Answer, Ask, Dialect, Id, Session, Whom};
use super::names::Key;
use super::{CONNECTIONS, SessionStore, Setup, connections};
use crate::mysql::MySqlConfig;
use crate::mysql::error::{explain, number};
use crate::mysql::link::run;
use crate::mysql::open;
use crate::mysql::sql::{Template, Value};
use crate::unharmed::{legible, unharmed};
use life::Life;

/// Session locks in MySQL and MariaDB: `mysql+session://user:password@host:3306/database`.
pub const MYSQL_SESSION_DRIVER: Driver = Driver {
    name: "mysql-session",
    schemes: &["mysql+session", "mariadb+session"],
    example: "mysql+session://app:password@db.internal/app?ttl=5s",
    about: "GET_LOCK of MariaDB and MySQL sessions: fast, nothing is written down",
    capabilities: CAPABILITIES,
    options: OPTIONS,
    open,
    gate: lock_core::quorum::no_gate,
};

const CAPABILITIES: Capabilities = {
    let mut caps = super::CAPABILITIES;
    // Each of these locks is held by one session.
    caps.shared = false;
    // The server's time-out is in whole seconds.
    caps.min_lease = Duration::from_secs(1);
    caps.lease_step = Duration::from_secs(1);
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

const OPTIONS: &[OptionSpec] = &[
    CONNECTIONS,
    OptionSpec { name: "table_prefix", default: "onelock_", about: "what the name of the table begins with" },
    OptionSpec {
        name: "durability",
        default: "durable",
        about: "relaxed: take a server whose commits do not wait for the disk",
    },
    OptionSpec { name: "connect_timeout", default: "5s", about: "how long reaching the server may take" },
    OptionSpec { name: "request_timeout", default: "5s", about: "how long the server may take to answer" },
    OptionSpec { name: "tls", default: "prefer", about: "off, prefer, require, verify-ca or verify-full" },
    OptionSpec { name: "tls_ca", default: "the system's", about: "a PEM file with the authorities to trust" },
    OptionSpec { name: "tls_cert", default: "none", about: "a PEM file with the client's certificate" },
    OptionSpec { name: "tls_key", default: "none", about: "a PEM file with the client's key" },
];

/// How long each step of opening may take: nobody waits for a lock yet.
const OPENING: Duration = Duration::from_secs(30);

/// As good as no limit: a year, the longest the server takes.
const ENDLESS: i64 = 31_536_000;

fn open(mut url: StoreUrl, _clock: Arc<dyn Clock>) -> Opening {
    Box::pin(async move {
        url.check_options(&[OPTIONS])?;
        let connections = connections(&mut url)?;
        let config = MySqlConfig::from_url(url)?;
        let backend = open_with(config, connections).await?;
        Ok(Arc::new(backend) as Arc<dyn Backend>)
    })
}

async fn open_with(config: MySqlConfig, connections: u16) -> Result<SessionStore<MySql>> {
    let address =
        format!("{}://{}/{}", MySql::SCHEME, host_port(&config.host, Some(config.port)), config.database);
    let opened = async {
        let found = open::for_sessions(&config, OPENING).await?;
        let dialect = MySql::new(&config, found.mariadb);
        let mut conn = dialect.reach().await?;
        let space = tokio::time::timeout(OPENING, life::ensure(&mut conn, &config)).await;
        let space = space.map_err(|_| super::hold::silent())??;
        let first = dialect.session_within(OPENING).await?;
        let side = dialect.session_within(OPENING).await?;
        Ok((dialect, space, first, side))
    };
    let (dialect, space, first, side) =
        opened.await.map_err(|error: Error| error.during("open").at(address.clone()))?;
    let setup = Setup {
        info: Info { scheme: MySql::SCHEME.into(), address },
        capabilities: CAPABILITIES,
        space,
        connections,
        request_timeout: config.request_timeout,
    };
    Ok(SessionStore::new(setup, dialect, first, side))
}

struct MySql {
    options: MySqlConnectOptions,
    connect_timeout: Duration,
    request_timeout: Duration,
    mariadb: bool,
    sql: Sql,
}

/// The requests. Each answers by which session it was served.
struct Sql {
    settings: Template,
    set_up: Template,
    begin: Template,
    raise: Template,
    take: Template,
    give: Template,
    beat: Template,
    holder: Template,
    holds: Template,
    digits: Template,
    session: Template,
}

impl Sql {
    fn new(prefix: &str) -> Self {
        Self {
            settings: Template::new(include_str!("../../mysql/sql/session.sql"), prefix),
            set_up: Template::new(include_str!("sql/set_up.sql"), prefix),
            begin: Template::new(include_str!("sql/begin.sql"), prefix),
            raise: Template::new(include_str!("sql/raise.sql"), prefix),
            take: Template::new(include_str!("sql/take.sql"), prefix),
            give: Template::new(include_str!("sql/give.sql"), prefix),
            beat: Template::new(include_str!("sql/beat.sql"), prefix),
            holder: Template::new(include_str!("sql/holder.sql"), prefix),
            holds: Template::new(include_str!("sql/holds.sql"), prefix),
            digits: Template::new(include_str!("sql/digits.sql"), prefix),
            session: Template::new(include_str!("sql/session.sql"), prefix),
        }
    }
}

/// A connection, and the session at its other end.
#[derive(Debug)]
struct Conn {
    conn: MySqlConnection,
    id: i64,
    /// How many questions it was asked.
    asked: i64,
    life: Life,
    /// How long the server lets it be idle, zero is for ever; and when it last answered.
    limit: Duration,
    answered: Instant,
}

impl MySql {
    fn new(config: &MySqlConfig, mariadb: bool) -> Self {
        Self {
            options: config.options(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            mariadb,
            sql: Sql::new(&config.table_prefix),
        }
    }

    /// A connection in which nothing is set yet.
    async fn reach(&self) -> Result<MySqlConnection> {
        match tokio::time::timeout(self.connect_timeout, unharmed(self.options.connect())).await {
            Ok(conn) => conn.map_err(explain),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server could not be reached in time")),
        }
    }

    /// One round trip. The rows of all results; the first column of each says which session answers what question.
    async fn fetch(
        &self,
        conn: &mut Conn,
        sql: &Template,
        values: &[(&str, Value<'_>)],
    ) -> Result<Vec<MySqlRow>> {
        conn.asked += 1;
        let mut all = vec![("asked", Value::Int(conn.asked))];
        all.extend_from_slice(values);
        let rows = unharmed(run(&mut conn.conn, &sql.fill(&all))).await.map_err(ended)?;
        legible(|| {
            for row in &rows {
                match int(row, 0)?.wrapping_sub(conn.id) {
                    asked if asked == conn.asked => {}
                    // The answer to another question: the connection is out of step.
                    earlier if (0..conn.asked).contains(&earlier) => return Err(strange()),
                    // The lock belongs to the session: another one, by a proxy, is not ours.
                    _ => return Err(proxied()),
                }
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// The same, of one row.
    async fn fetch_one(
        &self,
        conn: &mut Conn,
        sql: &Template,
        values: &[(&str, Value<'_>)],
    ) -> Result<MySqlRow> {
        self.fetch(conn, sql, values).await?.into_iter().next().ok_or_else(strange)
    }

    async fn take(&self, conn: &mut Conn, ask: Take<'_>) -> Result<Answer> {
        let (key, own) = (quoted(&ask.key.long()), quoted(&own(conn.id)));
        let idle =
            ask.idle.map(|idle| format!("SESSION wait_timeout = {}, ", seconds(idle))).unwrap_or_default();
        let values = [
            ("idle", Value::Part(&idle)),
            ("key", Value::Part(&key)),
            ("patience", Value::Int(if ask.wait { ENDLESS } else { 0 })),
            ("shift", Value::Int(conn.life.shift)),
            ("own", Value::Part(&own)),
            ("tag", Value::Bytes(ask.tag.as_bytes())),
        ];
        let row = self.fetch_one(conn, &self.sql.take, &values).await?;
        let (number, whose) = legible(|| Ok((maybe(&row, 1)?, bytes(&row, 2)?)))?;
        match (number, &whose[..]) {
            (None, [0, rest @ ..]) if rest == ask.tag.as_bytes() => Ok(Answer::No),
            (Some(number), whose) if whose == ask.tag.as_bytes() => {
                let token = FencingToken::new(number)?;
                // Held, but not granted before a crash cannot bring this number back.
                self.cover(conn, number).await?;
                Ok(Answer::Taken(token))
            }
            _ => Err(strange()),
        }
    }
}

struct Take<'a> {
    key: &'a Key,
    wait: bool,
    tag: &'a str,
    idle: Option<Duration>,
}

impl Dialect for MySql {
    type Conn = Conn;

    const SCHEME: &'static str = "mysql+session";

    async fn connect(&self) -> Result<Session<Conn>> {
        self.session_within(self.request_timeout).await
    }

    async fn ask(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        let idle = conn.answered.elapsed();
        let answer = self.answer(conn, ask).await;
        match answer {
            Ok(answer) => {
                conn.limit = ask.idle().unwrap_or(conn.limit);
                conn.answered = Instant::now();
                Ok(answer)
            }
            // MariaDB ends an idle session without a word: nobody was there to be asked.
            Err(error) if error.is_unclear() && !conn.limit.is_zero() && idle >= whole(conn.limit) => {
                Err(Error::new(ErrorKind::Lost, "the server has ended the idle session").caused_by(error))
            }
            Err(error) => Err(error),
        }
    }
}

impl MySql {
    async fn session_within(&self, limit: Duration) -> Result<Session<Conn>> {
        let conn = self.reach().await?;
        let set_up = tokio::time::timeout(limit, self.set_up(conn)).await;
        let conn = set_up.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the server did not set up a session in time")
        })??;
        let id = Id { process: conn.id, born: conn.life.id };
        Ok(Session { conn, id, idle: Duration::ZERO })
    }

    async fn answer(&self, conn: &mut Conn, ask: &Ask) -> Result<Answer> {
        match ask {
            Ask::Take { key, wait, tag, idle, .. } => {
                self.take(conn, Take { key, wait: *wait, tag, idle: *idle }).await
            }
            Ask::Give { key, .. } => {
                let key = quoted(&key.long());
                let row = self.fetch_one(conn, &self.sql.give, &[("key", Value::Part(&key))]).await?;
                Ok(if legible(|| maybe(&row, 1))? == Some(1) { Answer::Yes } else { Answer::No })
            }
            Ask::Beat { idle } => {
                let idle = idle.map(|idle| format!("SET SESSION wait_timeout = {};", seconds(idle)));
                let idle = idle.unwrap_or_default();
                self.fetch_one(conn, &self.sql.beat, &[("idle", Value::Part(&idle))]).await?;
                Ok(Answer::Yes)
            }
            Ask::Waits(id) => self.waits(conn, *id).await,
            Ask::Look(key) => self.look(conn, key).await,
            Ask::End(Whom::Session(id)) => {
                // What belongs to another life of the server has ended with it.
                if id.born == conn.life.id { self.end(conn, id.process).await } else { Ok(Answer::No) }
            }
            Ask::End(Whom::Tag(key, tag)) => self.end_holder(conn, key, |own| says_tag(own, tag)).await,
            Ask::End(Whom::Token(key, token)) => {
                self.end_holder(conn, key, |own| says_number(own, token.get())).await
            }
        }
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySql").finish_non_exhaustive()
    }
}

/// What the names begin with by which a session says what it holds.
fn own(session: i64) -> String {
    format!("onelock/{session}/")
}

/// Conditions on the locks of the session with this prefix: that it says this number, this tag.
fn says_number(own: &str, number: i64) -> String {
    let digit = |place: i64| {
        format!(
            "IS_USED_LOCK({}) = :holder",
            quoted(&format!("{own}{place}/{}", (number >> (12 * place)) & 4095))
        )
    };
    (0..4).map(digit).collect::<Vec<_>>().join(" AND ")
}

fn says_tag(own: &str, tag: &str) -> String {
    format!("IS_USED_LOCK({}) = :holder", quoted(&format!("{own}t/{tag}")))
}

/// What was made here: it has no quote.
fn quoted(text: &str) -> String {
    format!("'{text}'")
}

/// How long a session may be idle, in whole seconds, never less than asked; zero is for ever.
fn seconds(idle: Duration) -> i64 {
    if idle.is_zero() {
        return ENDLESS;
    }
    let seconds = i64::try_from(idle.as_nanos().div_ceil(1_000_000_000)).unwrap_or(ENDLESS);
    seconds.min(ENDLESS)
}

/// What the server makes of it.
fn whole(idle: Duration) -> Duration {
    Duration::from_secs(u64::try_from(seconds(idle)).unwrap_or(u64::MAX))
}

fn int(row: &MySqlRow, column: usize) -> Result<i64> {
    row.try_get(column).map_err(explain)
}

fn maybe(row: &MySqlRow, column: usize) -> Result<Option<i64>> {
    row.try_get(column).map_err(explain)
}

fn bytes(row: &MySqlRow, column: usize) -> Result<Vec<u8>> {
    row.try_get(column).map_err(explain)
}

fn strange() -> Error {
    Error::new(ErrorKind::Protocol, "the server answered something else than asked")
}

fn proxied() -> Error {
    let text = "behind a proxy that moves requests between sessions there are no session locks; use a direct connection, \
                or mysql://";
    Error::new(ErrorKind::Unsupported, text)
}

/// What an error says of the session.
fn ended(error: sqlx::Error) -> Error {
    // By somebody's order, for having been idle, with the server.
    if matches!(number(&error), Some(1053 | 1927 | 3169 | 4031)) {
        return Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(error);
    }
    explain(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_becomes_shorter_or_endless() {
        let secs = Duration::from_secs;
        assert_eq!([seconds(Duration::from_nanos(1)), seconds(secs(3))], [1, 3]);
        assert_eq!(seconds(secs(3) + Duration::from_millis(1)), 4);
        assert_eq!(seconds(Duration::ZERO), ENDLESS);
        assert!(seconds(CAPABILITIES.max_lease) < ENDLESS);
    }

    #[test]
    fn names_of_locks_are_short_enough_for_every_server() {
        let longest = [own(i64::MAX) + "3/4095", own(i64::MAX) + "t/abcdefghijk"];
        assert!(longest.iter().all(|name| name.len() <= 64), "{longest:?}");
        let says = says_number("onelock/7/", (5 << 36) | (4095 << 12) | 1);
        for name in ["onelock/7/0/1'", "onelock/7/1/4095'", "onelock/7/2/0'", "onelock/7/3/5'"] {
            assert!(says.contains(name), "{says}");
        }
    }

    #[tokio::test]
    async fn bad_urls_are_refused_before_anything_is_sent() {
        for url in [
            "mysql+session://u@h/db?connections=0",
            "mysql+session://u@h/db?connections=10001",
            "mysql+session://u@h/db?pool=3",
            "mysql+session://u@h/db?poll=3ms",
            "mysql+session://u@h/db?table_prefix=a%60b",
            "mysql+session://u@h",
            "mysql+session://h/db",
        ] {
            let opened = open(url.parse().unwrap(), Arc::new(lock_core::BootClock)).await;
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
