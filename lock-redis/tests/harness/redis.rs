//! A redis-server per case.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use onelock_conformance::case::Need;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, Harness, PASSWORD, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::verdict::Verdict;
use onelock_core::{Backend, Capabilities, Driver};

use super::redis_inside::Inside;
pub use super::redis_inside::IsCounter;

/// Redis through any driver: each case has a server of its own.
pub struct Redis {
    name: &'static str,
    driver: Driver,
    capabilities: Capabilities,
    is_counter: IsCounter,
    /// The user that the clients of a case are, as in the user information of a URL.
    login: String,
    /// Lines of the server's configuration, which make that user.
    lines: Vec<String>,
}

impl Redis {
    /// The store that `driver` opens, with what it declares and how its counters' keys look.
    #[must_use]
    pub fn new(driver: Driver, capabilities: Capabilities, is_counter: IsCounter) -> Self {
        let (login, lines) = (String::new(), Vec::new());
        Self { name: "redis", driver, capabilities, is_counter, login, lines }
    }

    /// The same, with clients that are this user, who may do what `rights` say (in the words of `ACL SETUSER`, the
    /// password included).
    #[must_use]
    pub fn restricted_to(self, name: &str, password: &str, rights: &str) -> Self {
        let (login, lines) = (format!("{name}:{password}@"), vec![format!("user {name} {rights}")]);
        Self { login, lines, ..self }
    }

    /// The same under another name, for another layout.
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// What a loaded machine may need to answer: who takes it for dead connects anew and makes every waiter ask, and then the
/// cases that count requests count that.
pub(super) const PATIENT: &str = "?request_timeout=5s";

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn lacks(&self, need: Need) -> Option<String> {
        // One key is a lock whoever wrote it; a line has keys of its own.
        let plain = need == Need::Foreign && !self.capabilities.fifo;
        plain.then(|| "what others write there is their lock".to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let server = RedisServer::start(Setup { lines: self.lines.clone(), ..Setup::default() }).await?;
        Ok(Box::new(Running {
            login: self.login.clone(),
            driver: self.driver,
            proxies: Proxies::default(),
            inside: Inside::new(vec![server.address()], self.is_counter),
            server,
        }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&self.driver, url).await
    }
}

struct Running {
    /// What comes before the host in a URL.
    login: String,
    driver: Driver,
    proxies: Proxies,
    inside: Inside,
    server: RedisServer,
}

impl Running {
    fn url_at(&self, address: SocketAddr) -> String {
        format!("redis://{}{address}", self.login)
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(self.driver)
    }

    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&self.driver, &format!("{}{PATIENT}", self.url()?)).await?)
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        // The user of the others has no rights there.
        let url = format!("redis://{}{PATIENT}&namespace=onelock2", self.server.address());
        Ok(Some(open_by(&self.driver, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.url_at(self.server.address()))
    }

    async fn requests(&self) -> Verdict<u64> {
        self.inside.requests().await
    }

    async fn connections(&self) -> Verdict<u64> {
        self.inside.connections().await
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let address = self.proxies.way(self.server.address(), link).await?;
        // Short, so that a case with lost replies does not take minutes.
        Ok(format!("{}?request_timeout=500ms&connect_timeout=500ms", self.url_at(address)))
    }

    async fn restart(&self) -> Verdict {
        self.server.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server.process.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        self.inside.residue().await
    }

    async fn counters(&self) -> Verdict<u64> {
        self.inside.counters().await
    }

    async fn plant(&self, name: &str) -> Verdict {
        self.inside.plant(self, name).await
    }

    async fn planted(&self, _name: &str) -> Verdict<bool> {
        self.inside.planted().await
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!("redis://127.0.0.1:{}?connect_timeout=300ms&request_timeout=300ms", free_port()?))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let password = Some(PASSWORD.to_owned());
        let server = RedisServer::start(Setup { password, ..Setup::default() }).await?;
        Ok(Credentials::of(server, |server, password| format!("redis://:{password}@{}", server.address())))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_name()?;
        let tls = Some(certificates.files().clone());
        let server = RedisServer::start(Setup { tls, ..Setup::default() }).await?;
        Ok(Tls::of(server, certificates, "&tls_ca=", |server, host, options| {
            format!("rediss://{host}:{}?{options}", server.address().port())
        }))
    }
}
