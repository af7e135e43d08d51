//! Session locks of MySQL and MariaDB: `GET_LOCK`.
//!
//! A session takes one lock of the store at a time, and waits only while it holds nothing, so the server's deadlock detector never
//! finds a circle here. Once it holds, it takes a few more of these locks that nobody else asks for: their names spell the number it
//! drew and whose it is, which is all that others can learn of a session without rights, tables or commits.

mod asking;
mod life;
mod session;

use std::time::Duration;

use onelock_core::driver::opening;
use onelock_core::store::Checked;
use onelock_core::toolkit::Mutex;
use onelock_core::{Capabilities, Driver, OptionSpec, Result, StoreUrl};

use super::backend::SessionStore;
use super::{CONNECTIONS, connections};
use crate::hosts::OPENING;
use crate::mysql::MySqlConfig;
use crate::mysql::open::{Tables, for_sessions};
use session::MySql;

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

const TABLE: Tables = Tables {
    names: &["session"],
    version: ("SELECT CAST(version AS SIGNED) FROM `onelock_session` WHERE id = 1;", 1),
    migration: include_str!("schema/0001.sql"),
    instead: "run src/session/mysql/schema/0001.sql of onelock-sql and grant SELECT and UPDATE on `onelock_session`",
};

/// What keeps the locks of this table apart from others.
const SPACE: &str = "SELECT LOWER(HEX(space)) FROM `onelock_session` WHERE id = 1;";

async fn open(mut url: StoreUrl) -> Result<Checked<SessionStore<MySql>>> {
    url.check_options(&[OPTIONS])?;
    let connections = connections(&mut url)?;
    let config = MySqlConfig::from_url(url)?;
    let times = (config.connect_timeout, config.request_timeout);
    SessionStore::open(config.address(), connections, times, async {
        let patient = MySqlConfig { request_timeout: OPENING, ..config.clone() };
        let space = for_sessions(&patient, &TABLE, SPACE).await?;
        Ok((MySql { config: config.clone(), known: Mutex::default() }, space))
    })
    .await
}

#[cfg(test)]
mod tests {
    use onelock_core::ErrorKind;

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
