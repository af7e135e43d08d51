//! Session locks of PostgreSQL: `pg_advisory_lock`.
//!
//! A session holds one lock at a time, and says which in its application name from the moment it has its number until just
//! after it has given the lock back; that is what others see of it, of sessions that hold. A session that waits holds nothing, so the server's deadlock
//! detector never finds a circle here and never changes the order of the queue.

mod asking;

use std::time::Duration;

use onelock_core::driver::opening;
use onelock_core::store::Checked;
use onelock_core::{Capabilities, Driver, Error, ErrorKind, OptionSpec, Result, StoreUrl};
use sqlx::postgres::PgConnection;

use super::backend::SessionStore;
use super::sessions::moved;
use super::{CONNECTIONS, connections};
use crate::postgres::PostgresConfig;
use crate::postgres::config::check_schema;
use crate::postgres::connect::{connect, raw};
use crate::postgres::error::explain;
use crate::postgres::migrate::ensure;
use asking::Postgres;

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
        let mut conns = [connect(&config).await?, connect(&config).await?];
        check(&mut conns).await?;
        let sql = migration(&config.namespace)?;
        ensure(&mut conns[0], &config.namespace, config.migrate, &sql).await?;
        Ok((Postgres(config.clone()), config.namespace.clone()))
    })
    .await
}

/// Refuses a server before the first version that ends idle sessions, and a pooler: two connections must meet two sessions of
/// the server, and each its own again, also while the other is busy: a client in a transaction keeps its session from the other.
async fn check(conns: &mut [PgConnection; 2]) -> Result<()> {
    const ROUND: [(usize, &str); 6] =
        [(1, "BEGIN; "), (0, "BEGIN; "), (0, "COMMIT; "), (0, ""), (1, "COMMIT; "), (1, "")];
    let mut met = [None, None];
    for (which, first) in [[(0, ""), (1, "")].to_vec(), ROUND.repeat(3)].concat() {
        let sql = "SELECT pg_backend_pid(), current_setting('server_version_num')::integer >= 140000";
        let (process, ends_idle): (i32, bool) =
            raw(&mut conns[which], format!("{first}{sql}")).await.map_err(explain)?;
        if !ends_idle {
            let text = "session locks need PostgreSQL 14 or later: an older one does not end idle sessions, and a lock \
                        would have no lease";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if *met[which].get_or_insert(process) != process || met[0] == met[1] {
            return Err(moved::<Postgres>());
        }
    }
    Ok(())
}

/// The SQL that makes the schema, to be run once, in one transaction, by the role that is to own it. The role that takes
/// locks then needs `USAGE` on the schema and on its sequence, and `EXECUTE` on its functions.
///
/// # Errors
/// [`onelock_core::ErrorKind::InvalidConfig`] when `schema` is not a plain lower-case identifier.
pub fn migration(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(include_str!("schema/0001.sql").replace("{schema}", &format!("\"{schema}\"")))
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
