//! What the shared suite is told about session locks of MySQL and MariaDB.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::case::Need;
use onelock_conformance::harness::{Harness, Store, open_by};
use onelock_conformance::servers::mariadb::mysqld;
use onelock_core::{Backend, Capabilities};
use onelock_sql::MYSQL_SESSION_DRIVER;

use crate::lacks;
use crate::mysql_server::running::{Kind, Running};
use crate::mysql_server::{Admin as _, MariaDb};

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::of_lines();
    caps.shared = false;
    caps.permits = false;
    caps.raise = false;
    caps.delay = false;
    caps.list = false;
    caps.durable = false;
    caps.resume = false;
    caps.min_lease = Duration::from_secs(1);
    caps.lease_step = Duration::from_secs(1);
    caps.max_lease = Duration::from_secs(24 * 24 * 3600);
    caps
};

/// A server for each case. The clients' user has the rights of the store's page and no other.
pub(crate) struct MySqlSession;

#[async_trait]
impl Harness for MySqlSession {
    fn name(&self) -> &'static str {
        "mysql-session"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn hand_over_cost(&self) -> u64 {
        // Joining is a try, a place in the queue, and a look whether the server has it.
        6
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let foreign =
            "what others lock under our names is a lock; the store's own tests show what is refused";
        lacks::why(need, foreign)
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let kind = Kind {
            driver: MYSQL_SESSION_DRIVER,
            residue: locks_sql(),
            counters: "SELECT COUNT(*) FROM locks.onelock_session",
            options: "tls=off&connections=250",
            hasty: "connections=250&tls=off&request_timeout=1s&connect_timeout=2s",
            rights: "CREATE, INSERT, SELECT, UPDATE",
        };
        Ok(Box::new(Running::new(kind, start(&[]).await?)?))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&MYSQL_SESSION_DRIVER, url).await
    }
}

/// A server with the table, a user `locker` with the rights of the store's page, and something that shows who holds which lock.
pub(crate) async fn start(settings: &[&str]) -> Verdict<MariaDb> {
    let seen =
        if mysqld().is_some() { "--performance-schema=ON" } else { "--plugin-load-add=metadata_lock_info" };
    let all: Vec<_> = ["--max-connections=600", seen].into_iter().chain(settings.iter().copied()).collect();
    let server = MariaDb::start(&all).await?;
    let file = include_str!("../../src/session/mysql/schema/0001.sql");
    server.run(&format!("SET autocommit = 1; USE locks; {file}")).await?;
    server.run("CREATE USER locker@'127.0.0.1'").await?;
    server.run("GRANT SELECT, UPDATE ON locks.onelock_session TO locker@'127.0.0.1'").await?;
    Ok(server)
}

/// Asks for the locks of all sessions.
pub(crate) fn locks_sql() -> &'static str {
    if mysqld().is_some() {
        "SELECT CONCAT(OBJECT_NAME, ' ', LOCK_STATUS) FROM performance_schema.metadata_locks \
         WHERE OBJECT_TYPE = 'USER LEVEL LOCK'"
    } else {
        "SELECT CONCAT(TABLE_SCHEMA, ' ', THREAD_ID) FROM information_schema.METADATA_LOCK_INFO \
         WHERE LOCK_TYPE = 'User lock'"
    }
}
