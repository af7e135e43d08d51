//! Session locks of MySQL and MariaDB: `GET_LOCK`.
//!
//! A session takes one lock of the store at a time, and waits only while it holds nothing, so the server's deadlock detector never
//! finds a circle here. Once it holds, it takes a few more of these locks that nobody else asks for: their names spell the number it
//! drew and whose it is, which is all that others can learn of a session without rights, tables or commits.

mod asking;
mod life;
mod words;

use std::sync::Mutex;
use std::time::Duration;

use onelock_core::driver::opening;
use onelock_core::store::Checked;
use onelock_core::{Capabilities, Driver, Error, ErrorKind, OptionSpec, Result, StoreUrl};
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::backend::SessionStore;
use super::sessions::silent;
use super::{CONNECTIONS, OPENING, connections};
use crate::hosts::in_time;
use crate::mysql::MySqlConfig;
use crate::mysql::connect::Connector;
use crate::mysql::error::explain;
use crate::mysql::open;
use crate::mysql::pool::run;
use crate::mysql::sql::{Template, Value};
use crate::unharmed::{legible, unharmed};
use asking::Conn;
use life::Life;
use words::ended;

/// Session locks in MySQL and MariaDB: `mysql+session://user:password@host:3306/database`.
pub const MYSQL_SESSION_DRIVER: Driver =
    Driver::new("mysql-session", &["mysql+session", "mariadb+session"], |url, _| opening(open(url)))
        .example("mysql+session://app:password@db.internal/app?ttl=5s")
        .about("GET_LOCK of MariaDB and MySQL sessions: fast, nothing is written down")
        .capabilities(CAPABILITIES)
        .options(OPTIONS);

/// Each of these locks is held by one session, and the server's time-out is in whole seconds.
const CAPABILITIES: Capabilities = super::CAPABILITIES
    .shared(false)
    .min_lease(Duration::from_secs(1))
    .lease_step(Duration::from_secs(1))
    .max_lease(Duration::from_secs(24 * 24 * 3600));

const OPTIONS: &[OptionSpec] = {
    let [namespace, durability, _, connect, request, _, _, tls, ca, cert, key, socket] =
        *MySqlConfig::OPTIONS
    else {
        unreachable!()
    };
    &[CONNECTIONS, namespace, durability, connect, request, tls, ca, cert, key, socket]
};

/// As good as no limit: a year, the longest the server takes.
const ENDLESS: i64 = 31_536_000;

async fn open(mut url: StoreUrl) -> Result<Checked<SessionStore<MySql>>> {
    url.check_options(&[OPTIONS])?;
    let connections = connections(&mut url)?;
    let config = MySqlConfig::from_url(url)?;
    SessionStore::open(config.address(), connections, config.request_timeout, async {
        let found = open::for_sessions(&config, OPENING).await?;
        let dialect = MySql::new(&config, found.mariadb);
        let mut conn = dialect.reach().await?;
        let space = tokio::time::timeout(OPENING, dialect.ensure(&mut conn)).await;
        let space = space.map_err(|_| silent())??;
        let first = dialect.session_within(OPENING).await?;
        let side = dialect.session_within(OPENING).await?;
        Ok((dialect, space, [first, side]))
    })
    .await
}

#[derive(Debug)]
struct MySql {
    connector: Connector,
    connect_timeout: Duration,
    request_timeout: Duration,
    mariadb: bool,
    /// What this client last read about a life of its server, and is on that server's disk.
    known: Mutex<Option<Life>>,
    /// What the table's name begins with.
    prefix: String,
}

impl MySql {
    fn new(config: &MySqlConfig, mariadb: bool) -> Self {
        Self {
            connector: Connector::new(config),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            mariadb,
            known: Mutex::default(),
            prefix: config.namespace.clone(),
        }
    }

    /// A request that is not prepared.
    fn text(&self, text: &'static str, values: &[(&str, Value<'_>)]) -> String {
        Template::new(text, &self.prefix).fill(values)
    }

    async fn rows(
        &self,
        conn: &mut MySqlConnection,
        text: &'static str,
        values: &[(&str, Value<'_>)],
    ) -> Result<Vec<MySqlRow>> {
        unharmed(run(conn, self.text(text, values))).await.map_err(ended)
    }

    /// What `read` makes of the first row, if there is one.
    async fn first<T>(
        &self,
        conn: &mut MySqlConnection,
        text: &'static str,
        values: &[(&str, Value<'_>)],
        read: impl FnOnce(&MySqlRow) -> Result<T>,
    ) -> Result<Option<T>> {
        let rows = self.rows(conn, text, values).await?;
        rows.first().map(|row| legible(|| read(row))).transpose()
    }

    /// A connection in which nothing is set yet.
    async fn reach(&self) -> Result<MySqlConnection> {
        in_time(self.connect_timeout, self.connector.connect()).await.map_err(explain)
    }

    async fn session_within(&self, limit: Duration) -> Result<Conn> {
        let conn = self.reach().await?;
        let set_up = tokio::time::timeout(limit, self.set_up(conn)).await;
        set_up
            .map_err(|_| Error::new(ErrorKind::Unavailable, "the server did not set up a session in time"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let opened = open(url.parse().unwrap()).await;
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
