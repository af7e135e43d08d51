//! What the shared suite is told about the store: directly, and behind a pooler.

use std::sync::Arc;
use std::time::Duration;

use super::pgbouncer::PgBouncer;
use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::case::Need;
use onelock_conformance::harness::{Harness, Store, open_by};
use onelock_core::{Backend, Capabilities};
use onelock_sql::POSTGRES_DRIVER;

use super::running::{Kind, Running};
use super::{Admin as _, PostgresServer};

/// What the store must declare.
const CAPABILITIES: Capabilities = Capabilities::of_lines();

/// A server for each case. The clients' role has the rights of the store's page and no other.
#[derive(Default)]
pub(crate) struct Postgres {
    /// Whether the clients go to a pooler before it, which gives each transaction another session.
    pub pooled: bool,
}

const CONNECTIONS: &str =
    "a client has a fixed number of connections and not one; the store's own tests count them";
const FOREIGN: &str = "a schema that is not ours is refused when it is opened; the store's own tests show it";

/// The store's tables.
const TABLES: Kind = Kind {
    driver: POSTGRES_DRIVER,
    residue: "SELECT name FROM onelock.line ORDER BY token",
    counters: "SELECT count(*) FROM onelock.block",
    hasty: "request_timeout=500ms&connect_timeout=500ms",
};

#[async_trait]
impl Harness for Postgres {
    fn name(&self) -> &'static str {
        if self.pooled { "pgbouncer" } else { "postgres" }
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Connections => CONNECTIONS,
            Need::Foreign => FOREIGN,
            Need::Password | Need::Tls if self.pooled => {
                "the way to the pooler is as the way to the server: shown without it"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = PostgresServer::start(&[]).await?;
        if self.pooled {
            let pooler = PgBouncer::start(server.port(), "transaction", &[]).await?;
            let (url, port) = (pooler.url("postgres"), pooler.port());
            return Ok(Box::new(Running::new(TABLES, server, Some(pooler), url, port)));
        }
        server.migrate("app").await?;
        let port = server.port();
        let url = format!("postgres://app@127.0.0.1:{port}/postgres?migrate=false");
        Ok(Box::new(Running::new(TABLES, server, None, url, port)))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&POSTGRES_DRIVER, url).await
    }
}
