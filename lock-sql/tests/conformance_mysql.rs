//! The shared suite on MariaDB servers, as a user who has the run-time rights of the store's page and no other.

mod mysql_server;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mysql_server::running::{Kind, Running};
use mysql_server::{Admin as _, MariaDb};
use onelock_conformance::Need;
use onelock_conformance::harness::{Harness, Store, open_by};
use onelock_conformance::verdict::Verdict;
use onelock_core::{Backend, Capabilities};

/// What the store must declare on a server that flushes its log at every commit.
const CAPABILITIES: Capabilities = Capabilities::of_lines().max_batch(128);

/// The store's tables.
const TABLES: Kind = Kind {
    driver: onelock_sql::MYSQL_DRIVER,
    residue: "SELECT CONCAT(name, ' ', number) FROM locks.onelock_line",
    counters: "SELECT COUNT(*) FROM locks.onelock_counter",
    options: "tls=off",
    hasty: "request_timeout=500ms&connect_timeout=500ms",
    rights: "CREATE, SELECT, INSERT, UPDATE, DELETE",
};

/// A server per case.
struct MySql;

#[async_trait]
impl Harness for MySql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Connections => {
                "a client has a fixed number of connections and not one; the store's own tests count them"
            }
            Need::Foreign => {
                "constraints keep rows that are not ours out of the tables, and tables that are not ours are refused \
                 when a client connects; the store's own tests show both"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = MariaDb::start(&[]).await?.with_locker().await?;
        Ok(Box::new(Running::new(TABLES, server)?))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&onelock_sql::MYSQL_DRIVER, url).await
    }
}

fn main() -> ExitCode {
    onelock_conformance::run(MySql)
}
