//! Session locks of PostgreSQL: `pg_advisory_lock`.
//!
//! A session holds one lock at a time, and says which in its application name from the moment it has its number until just
//! after it has given the lock back; that is what others see of it, of sessions that hold. A session that waits holds nothing, so the server's deadlock
//! detector never finds a circle here and never changes the order of the queue.

mod asking;
mod opening;
mod session;

use std::time::Duration;

use onelock_core::driver::opening;
use onelock_core::store::Checked;
use onelock_core::{Capabilities, Driver, OptionSpec, Result, StoreUrl};

use super::backend::SessionStore;
use super::{CONNECTIONS, connections};
use crate::postgres::PostgresConfig;
use crate::postgres::connect::connect;
use crate::postgres::migrate::ensure;
use opening::check;
pub use opening::migration;
use session::Postgres;

/// Session locks in PostgreSQL: `postgres+session://user:password@host:5432/database`.
pub const POSTGRES_SESSION_DRIVER: Driver =
    Driver::new("postgres-session", &["postgres+session", "postgresql+session"], |url, _| opening(open(url)))
        .example("postgres+session://app:password@db.internal/app?ttl=5s")
        .about("advisory locks of PostgreSQL sessions: fast, nothing is written down")
        .capabilities(CAPABILITIES)
        .options(OPTIONS);

/// The longest lease is what the server's setting takes.
const CAPABILITIES: Capabilities = super::CAPABILITIES.max_lease(Duration::from_secs(24 * 24 * 3600));

const OPTIONS: &[OptionSpec] = {
    let [schema, migrate, _, _, connect, request, sslmode, ca, cert, key, socket, port] =
        *PostgresConfig::OPTIONS
    else {
        unreachable!()
    };
    let namespace = OptionSpec::new("namespace", SCHEMA, "The schema of the counter").aliases(schema.aliases);
    &[CONNECTIONS, namespace, migrate, connect, request, sslmode, ca, cert, key, socket, port]
};

const SCHEMA: &str = "onelock_session";

async fn open(mut url: StoreUrl) -> Result<Checked<SessionStore<Postgres>>> {
    url.check_options(&[OPTIONS])?;
    let connections = connections(&mut url)?;
    let defaults = PostgresConfig { namespace: SCHEMA.to_owned(), ..PostgresConfig::default() };
    let config = defaults.over(url)?;
    let times = (config.connect_timeout, config.request_timeout);
    SessionStore::open(config.address(), connections, times, async {
        let mut conn = connect(&config).await?;
        check(&mut conn, &mut connect(&config).await?).await?;
        ensure(&mut conn, &config.namespace, config.migrate, &migration(&config.namespace)?).await?;
        Ok((Postgres { config: config.clone() }, config.namespace.clone()))
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
            "postgres+session://h/db?connections=0",
            "postgres+session://h/db?connections=10001",
            "postgres+session://h/db?schema=a.b",
            "postgres+session://h/db?durability=relaxed",
            "postgres+session://",
        ] {
            let opened = open(url.parse().unwrap()).await;
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
