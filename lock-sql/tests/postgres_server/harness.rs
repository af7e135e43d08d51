//! What the shared suite is told about the store: directly, and behind a pooler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::Verdict;
use lock_conformance::case::Need;
use lock_conformance::faults::{Link, Proxy};
use lock_conformance::harness::redis::open_by;
use lock_conformance::harness::{Credentials, Harness, Store, Tls};
use lock_conformance::servers::{data_folder, free_port, tls};
use lock_core::{Backend, Capabilities};
use lock_sql::POSTGRES_DRIVER;
use sqlx::{Executor as _, Row as _};

use super::{Admin as _, PostgresServer};
use lock_conformance::servers::pgbouncer::PgBouncer;

/// What the store must declare.
const CAPABILITIES: Capabilities = Capabilities::full();

/// A server for each case. The clients' role has the rights of the store's page and no other.
pub(crate) struct Postgres;

/// The same behind a pooler that gives each transaction another session.
pub(crate) struct Pooled;

const CONNECTIONS: &str =
    "a client has a fixed number of connections and not one; the store's own tests count them";
const FOREIGN: &str = "a schema that is not ours is refused when it is opened; the store's own tests show it";

#[async_trait]
impl Harness for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
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
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = PostgresServer::start(&[]).await?;
        server.migrate("app").await?;
        let port = server.port();
        let url = format!("postgres://app@127.0.0.1:{port}/postgres?migrate=false");
        Ok(Box::new(Running { server, pooler: None, url, port, proxies: Mutex::default() }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&POSTGRES_DRIVER, url).await
    }
}

#[async_trait]
impl Harness for Pooled {
    fn name(&self) -> &'static str {
        "pgbouncer"
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
            Need::Password | Need::Tls => {
                "the way to the pooler is as the way to the server: shown without it"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = PostgresServer::start(&[]).await?;
        let pooler = PgBouncer::start(server.port(), "transaction", &[]).await?;
        let (url, port) = (pooler.url("postgres"), pooler.port());
        Ok(Box::new(Running { server, pooler: Some(pooler), url, port, proxies: Mutex::default() }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&POSTGRES_DRIVER, url).await
    }
}

struct Running {
    server: PostgresServer,
    /// Kept running.
    #[allow(dead_code)]
    pooler: Option<PgBouncer>,
    /// Where the clients go.
    url: String,
    port: u16,
    proxies: Mutex<Vec<Proxy>>,
}

#[async_trait]
impl Store for Running {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&POSTGRES_DRIVER, &self.url).await?)
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.url.clone())
    }

    async fn requests(&self) -> Verdict<u64> {
        self.server.requests()
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let proxy = Proxy::start(([127, 0, 0, 1], self.port).into(), link).await?;
        // Short, so that a case with lost replies does not take minutes.
        let by = self.url.replace(&format!(":{}/", self.port), &format!(":{}/", proxy.address().port()));
        let rest = "sslmode=disable&request_timeout=500ms&connect_timeout=500ms";
        let by = format!("{by}{}{rest}", if by.contains('?') { '&' } else { '?' });
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(by)
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&POSTGRES_DRIVER, &self.url_by(link).await?).await?)
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let rows =
            self.server.admin().await?.fetch_all("SELECT name FROM onelock.line ORDER BY token").await?;
        rows.into_iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn counters(&self) -> Verdict<u64> {
        let row = self.server.admin().await?.fetch_one("SELECT count(*) FROM onelock.bucket").await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!("postgres://127.0.0.1:{}/db?connect_timeout=300ms&request_timeout=300ms", free_port()?))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let (right, wrong) = ("correct-h0rse-battery", "wr0ng-h0rse-battery");
        let server = PostgresServer::start(&[]).await?;
        let mut admin = server.admin().await?;
        admin.execute("CREATE ROLE secret LOGIN SUPERUSER PASSWORD 'correct-h0rse-battery'").await?;
        let with =
            |password: &str| format!("postgres://secret:{password}@127.0.0.1:{}/postgres", server.port());
        Ok(Credentials {
            good: with(right),
            bad: with(wrong),
            secrets: vec![right.to_owned(), wrong.to_owned()],
            keep: Box::new(server),
        })
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let folder = data_folder()?;
        let right = tls::authority(folder.path(), "right", "localhost")?;
        let other = tls::authority(folder.path(), "other", "localhost")?;
        let server = PostgresServer::start_with_tls(&right).await?;
        let by = |host: &str, rest: &str| {
            format!("postgres://postgres@{host}:{}/postgres?connect_timeout=2s&sslmode={rest}", server.port())
        };
        let authority = |file: &std::path::Path| format!("verify-full&sslrootcert={}", file.display());
        Ok(Tls {
            good: by("localhost", &authority(&right.authority)),
            bad: vec![
                (
                    by("localhost", &authority(&other.authority)),
                    "an authority that did not sign the certificate",
                ),
                (by("127.0.0.1", &authority(&right.authority)), "a host the certificate is not for"),
                (by("localhost", "verify-full"), "an authority the system does not know"),
            ],
            keep: Box::new((server, folder)),
        })
    }
}
