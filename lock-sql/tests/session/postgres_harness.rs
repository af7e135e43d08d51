//! What the shared suite is told about session locks of PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::case::Need;
use onelock_conformance::harness::{Harness, Store, open_by};
use onelock_core::{Backend, Capabilities};
use onelock_sql::POSTGRES_SESSION_DRIVER;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::lacks;
use crate::postgres_server::running::{Kind, Running};
use crate::postgres_server::{Admin as _, PostgresServer};

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::of_lines();
    caps.permits = false;
    caps.raise = false;
    caps.delay = false;
    caps.list = false;
    caps.durable = false;
    caps.resume = false;
    caps.min_lease = Duration::from_millis(200);
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

/// The locks of the server's sessions.
const SESSIONS: Kind = Kind {
    driver: POSTGRES_SESSION_DRIVER,
    residue: LOCKS,
    counters: "SELECT count(*) FROM pg_sequences WHERE schemaname = 'onelock_session'",
    hasty: "request_timeout=1s&connect_timeout=2s",
};

/// Asks for the locks of all sessions: a session's name says what it holds.
pub(crate) const LOCKS: &str = "SELECT a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a \
                                USING (pid) WHERE l.locktype = 'advisory'";

/// A server for each case. The clients' role has the rights of the store's page and no other.
pub(crate) struct PostgresSession;

#[async_trait]
impl Harness for PostgresSession {
    fn name(&self) -> &'static str {
        "postgres-session"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn hand_over_cost(&self) -> u64 {
        // Joining is a try, a place in the queue, and a look whether the server has it.
        6
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let foreign = "what others lock under our keys is a lock; the store's own tests show what is refused";
        lacks::why(need, foreign)
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = start(&[]).await?;
        let port = server.port();
        let url =
            format!("postgres+session://onelock@127.0.0.1:{port}/postgres?migrate=false&connections=250");
        Ok(Box::new(Running::new(SESSIONS, server, None, url, port)))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&POSTGRES_SESSION_DRIVER, url).await
    }
}

/// A server with the schema, and a role `onelock` with the rights of the store's page.
pub(crate) async fn start(settings: &[&str]) -> Verdict<PostgresServer> {
    // A session's name says what it holds: it is told by its user, in the log that counts the requests.
    let all: Vec<_> =
        ["log_line_prefix=%u| ", "max_connections=600"].into_iter().chain(settings.iter().copied()).collect();
    let server = PostgresServer::start(&all).await?;
    let sql = onelock_sql::session::postgres::migration("onelock_session")?;
    let grants = "CREATE ROLE onelock LOGIN; GRANT USAGE ON SCHEMA onelock_session TO onelock; \
                  GRANT USAGE ON SEQUENCE onelock_session.number TO onelock; \
                  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onelock_session TO onelock;";
    server.admin().await?.execute(sqlx::raw_sql(AssertSqlSafe(sql + grants))).await?;
    Ok(server)
}
