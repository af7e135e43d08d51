//! A PostgreSQL server of one case of the shared suite, whatever kind of locks it serves.

use std::sync::Arc;

use super::pgbouncer::PgBouncer;
use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, PASSWORD, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_core::{Backend, Driver};
use sqlx::{Executor as _, Row as _};

use super::{Admin as _, PostgresServer};

/// What tells the kinds of locks apart.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub driver: Driver,
    /// Asks what is in the store, as text.
    pub residue: &'static str,
    /// Asks how many counters there are.
    pub counters: &'static str,
    /// How long a client on a faulty network waits: short, so that a case with lost replies does not take minutes.
    pub hasty: &'static str,
}

pub(crate) struct Running {
    kind: Kind,
    server: PostgresServer,
    /// Kept running.
    _pooler: Option<PgBouncer>,
    /// Where the clients go.
    url: String,
    port: u16,
    proxies: Proxies,
}

impl Running {
    /// The clients go to `url`, which is at `port`.
    pub(crate) fn new(
        kind: Kind,
        server: PostgresServer,
        pooler: Option<PgBouncer>,
        url: String,
        port: u16,
    ) -> Self {
        Self { kind, server, _pooler: pooler, url, port, proxies: Proxies::default() }
    }

    fn scheme(&self) -> &'static str {
        self.kind.driver.schemes[0]
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(self.kind.driver)
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        // The role of the others may not make it.
        let (scheme, port) = (self.scheme(), self.server.port());
        let url = format!("{scheme}://postgres@127.0.0.1:{port}/postgres?namespace=onelock_2");
        Ok(Some(open_by(&self.kind.driver, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.url.clone())
    }

    async fn requests(&self) -> Verdict<u64> {
        self.server.requests()
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let way = self.proxies.way(([127, 0, 0, 1], self.port), link).await?;
        let by = self.url.replace(&format!(":{}/", self.port), &format!(":{}/", way.port()));
        let more = if by.contains('?') { '&' } else { '?' };
        Ok(format!("{by}{more}sslmode=disable&{}", self.kind.hasty))
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let rows = self.server.admin().await?.fetch_all(self.kind.residue).await?;
        rows.into_iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn counters(&self) -> Verdict<u64> {
        let row = self.server.admin().await?.fetch_one(self.kind.counters).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }

    fn unreachable_url(&self) -> Verdict<String> {
        let (scheme, port) = (self.scheme(), free_port()?);
        Ok(format!("{scheme}://127.0.0.1:{port}/db?connect_timeout=300ms&request_timeout=300ms"))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let server = PostgresServer::start(&[]).await?;
        let role = format!("CREATE ROLE secret LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
        server.admin().await?.execute(sqlx::AssertSqlSafe(role)).await?;
        Ok(Credentials::of(server, |server, password| {
            format!("{}://secret:{password}@127.0.0.1:{}/postgres", self.scheme(), server.port())
        }))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_name()?;
        let server = PostgresServer::start_with_tls(certificates.files()).await?;
        Ok(Tls::of(server, certificates, "&sslrootcert=", |server, host, options| {
            let at = format!("{}://postgres@{host}:{}/postgres", self.scheme(), server.port());
            format!("{at}?sslmode=verify-full&{options}")
        }))
    }
}
