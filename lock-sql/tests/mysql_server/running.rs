//! A server of one case of the shared suite, whatever kind of locks it serves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, PASSWORD, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::verdict::Verdict;
use onelock_core::{Backend, Driver};

use super::counter::Counter;
use super::{Admin as _, MariaDb};

/// What tells the kinds of locks apart.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub driver: Driver,
    /// Asks what is in the store.
    pub residue: &'static str,
    /// Asks how many counters there are.
    pub counters: &'static str,
    /// The options of a client: without TLS, because what is encrypted cannot be counted.
    pub options: &'static str,
    /// Those of a client on a faulty network: short times, so that a case with lost replies does not take minutes.
    pub hasty: &'static str,
    /// What somebody needs in the database who makes the tables and takes locks.
    pub rights: &'static str,
}

pub(crate) struct Running {
    kind: Kind,
    counter: Counter,
    proxies: Proxies,
    server: MariaDb,
}

impl Running {
    pub(crate) fn new(kind: Kind, server: MariaDb) -> Verdict<Self> {
        let counter = Counter::start((Ipv4Addr::LOCALHOST, server.port()).into())?;
        Ok(Self { kind, counter, proxies: Proxies::default(), server })
    }

    fn scheme(&self) -> &'static str {
        self.kind.driver.schemes[0]
    }

    fn locker(&self, address: SocketAddr, options: &str) -> String {
        format!("{}://locker@{address}/locks?{options}", self.scheme())
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(self.kind.driver)
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        // The user of the others may not make it.
        let (scheme, port) = (self.scheme(), self.server.port());
        let url = format!("{scheme}://root@127.0.0.1:{port}/locks?namespace=onelock_2");
        Ok(Some(open_by(&self.kind.driver, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.locker((Ipv4Addr::LOCALHOST, self.counter.port()).into(), self.kind.options))
    }

    /// Verbs and what sets up connections. Polls for waiters and sweeps are bounded by time, not by verbs: the
    /// store's own tests count them.
    async fn requests(&self) -> Verdict<u64> {
        Ok(self.counter.verbs())
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let way = self.proxies.way((Ipv4Addr::LOCALHOST, self.server.port()), link).await?;
        Ok(self.locker(way, self.kind.hasty))
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.process.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        self.server.texts(self.kind.residue).await
    }

    async fn counters(&self) -> Verdict<u64> {
        self.server.count(self.kind.counters).await
    }

    fn unreachable_url(&self) -> Verdict<String> {
        let (scheme, port) = (self.scheme(), free_port()?);
        Ok(format!("{scheme}://root@127.0.0.1:{port}/locks?connect_timeout=300ms&request_timeout=300ms"))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let server = MariaDb::start(&[]).await?;
        server.run(&format!("CREATE USER secret@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")).await?;
        server.run(&format!("GRANT {} ON locks.* TO secret@'127.0.0.1'", self.kind.rights)).await?;
        Ok(Credentials::of(server, |server, password| {
            format!("{}://secret:{password}@127.0.0.1:{}/locks", self.scheme(), server.port())
        }))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_name()?;
        let server = MariaDb::start_with_tls(certificates.files()).await?;
        Ok(Tls::of(server, certificates, "&tls_ca=", |server, host, options| {
            let at = format!("{}://root@{host}:{}/locks", self.scheme(), server.port());
            format!("{at}?tls=verify-full&{options}")
        }))
    }
}
