//! A redis-server per case.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Backend, Capabilities, Driver, Mode};
use tokio::sync::watch;

use super::{Certificates, Credentials, Harness, PASSWORD, Store, Tls, open_by};
use crate::case::Need;
use crate::ctx::{held, name, request, ticket, waiting};
use crate::faults::{Link, Proxies};
use crate::servers::free_port;
use crate::servers::redis::{RedisServer, Setup};
use crate::servers::resp::Resp;
use crate::verdict::{Context as _, Stop, Verdict};

/// What tells a counter from what must go: the key of one.
pub type IsCounter = fn(&str) -> bool;

/// Redis through any driver: each case has a server of its own.
pub struct Redis {
    name: &'static str,
    driver: Driver,
    capabilities: Capabilities,
    is_counter: IsCounter,
    user: Option<User>,
}

/// The user that the clients of a case are.
#[derive(Clone)]
struct User {
    /// As in the user information of a URL.
    login: String,
    /// The line of the server's configuration that makes it.
    line: String,
}

impl Redis {
    /// The store that `driver` opens, with what it declares and how its counters' keys look.
    #[must_use]
    pub fn new(driver: Driver, capabilities: Capabilities, is_counter: IsCounter) -> Self {
        Self { name: "redis", driver, capabilities, is_counter, user: None }
    }

    /// The same, with clients that are this user, who may do what `rights` say (in the words of `ACL SETUSER`, the
    /// password included).
    #[must_use]
    pub fn restricted_to(self, name: &str, password: &str, rights: &str) -> Self {
        let user = User { login: format!("{name}:{password}@"), line: format!("user {name} {rights}") };
        Self { user: Some(user), ..self }
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

    fn unit(&self) -> Duration {
        Duration::from_millis(400)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        // One key is a lock whoever wrote it; a line has keys of its own.
        let plain = need == Need::Foreign && !self.capabilities.fifo;
        plain.then(|| "what others write there is their lock".to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let lines = self.user.iter().map(|user| user.line.clone()).collect();
        let server = RedisServer::start(Setup { lines, ..Setup::default() }).await?;
        Ok(Box::new(Running {
            login: self.user.as_ref().map_or_else(String::new, |user| user.login.clone()),
            driver: self.driver,
            is_counter: self.is_counter,
            proxies: Proxies::default(),
            planted: Mutex::default(),
            watcher: tokio::sync::Mutex::new(None),
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
    is_counter: IsCounter,
    proxies: Proxies,
    planted: Mutex<Vec<String>>,
    watcher: tokio::sync::Mutex<Option<Watcher>>,
    server: RedisServer,
}

impl Running {
    fn url_at(&self, address: SocketAddr) -> String {
        format!("redis://{}{address}", self.login)
    }

    async fn admin(&self) -> Verdict<Resp> {
        Resp::connect(self.server.address()).await
    }

    async fn keys(&self) -> Verdict<(Vec<String>, Vec<String>)> {
        let keys = self.admin().await?.call(&["KEYS", "*"]).await?.texts();
        Ok(keys.into_iter().partition(|key| (self.is_counter)(key)))
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

    fn url(&self) -> Verdict<String> {
        Ok(self.url_at(self.server.address()))
    }

    async fn requests(&self) -> Verdict<u64> {
        let mut watcher = self.watcher.lock().await;
        if watcher.is_none() {
            *watcher = Some(Watcher::start(self.server.address()).await?);
        }
        watcher.as_mut().context("the monitor")?.count().await
    }

    async fn connections(&self) -> Verdict<u64> {
        let mut admin = self.admin().await?;
        let own =
            [Some(admin.local()), self.watcher.lock().await.as_ref().map(|watcher| watcher.admin.local())];
        let own =
            own.map(|address| format!(" addr={} ", address.map_or_else(String::new, |a| a.to_string())));
        let list = admin.call(&["CLIENT", "LIST"]).await?.texts().concat();
        let others = |line: &&str| !own.iter().any(|own| line.contains(own)) && !line.contains("cmd=monitor");
        Ok(list.lines().filter(others).count() as u64)
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
        self.server.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        Ok(self.keys().await?.1)
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(self.keys().await?.0.len() as u64)
    }

    async fn plant(&self, text: &str) -> Verdict {
        let ours = keys_of_line(self, text).await?;
        let mut admin = self.admin().await?;
        for key in &ours {
            admin.call(&["SET", key, FOREIGN]).await?;
        }
        self.planted.lock().unwrap_or_else(PoisonError::into_inner).extend(ours);
        Ok(())
    }

    async fn planted(&self, _name: &str) -> Verdict<bool> {
        let mut admin = self.admin().await?;
        let keys = self.planted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for key in &keys {
            if admin.call(&["GET", key]).await?.texts() != [FOREIGN] {
                return Ok(false);
            }
        }
        Ok(!keys.is_empty())
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

/// What is put in the place of a line.
pub(super) const FOREIGN: &str = "somebody else's";

/// The keys of the line of `text`: seen by putting a holder and a waiter there.
pub(super) async fn keys_of_line(store: &impl Store, text: &str) -> Verdict<Vec<String>> {
    let (backend, name) = (store.connect().await?, name(text)?);
    let (first, second) = (request(&name, Mode::Exclusive)?, request(&name, Mode::Exclusive)?);
    let before = store.residue().await?;
    let grant = held(&backend, &first).await?;
    let place = waiting(&backend, &second).await?;
    let keys = store.residue().await?;
    backend.release(&ticket(&second, place.token)).await?;
    backend.release(&ticket(&first, grant.token)).await?;
    Ok(keys.into_iter().filter(|key| !before.contains(key)).collect())
}

/// Counts the commands of clients with `MONITOR`: unlike the server's statistics it tells a script's own commands apart.
pub(super) struct Watcher {
    pub(super) admin: Resp,
    seen: Arc<AtomicU64>,
    marks: watch::Receiver<u64>,
    mark: u64,
    task: tokio::task::JoinHandle<()>,
}

impl Watcher {
    pub(super) async fn start(address: SocketAddr) -> Verdict<Self> {
        let admin = Resp::connect(address).await?;
        let mut monitor = Resp::connect(address).await?;
        monitor.call(&["MONITOR"]).await?;
        let seen = Arc::new(AtomicU64::new(0));
        let (told, marks) = watch::channel(0);
        let (own, count) = (format!(" {}] ", admin.local()), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok(line) = monitor.line().await {
                if line.contains(&own) {
                    let mark = line.rsplit('"').nth(1).and_then(|mark| mark.parse().ok());
                    if let Some(mark) = mark {
                        told.send_replace(mark);
                    }
                } else if !line.contains(" lua] ") && !is_housekeeping(&line) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { admin, seen, marks, mark: 0, task })
    }

    /// What the server has served until now: the monitor has seen all of it when it has seen our mark.
    pub(super) async fn count(&mut self) -> Verdict<u64> {
        self.mark += 1;
        let mark = self.mark;
        self.admin.call(&["ECHO", &mark.to_string()]).await?;
        let seen =
            tokio::time::timeout(Duration::from_secs(10), self.marks.wait_for(|told| *told >= mark)).await;
        match seen {
            Ok(Ok(_)) => Ok(self.seen.load(Ordering::Relaxed)),
            _ => Err(Stop::failed("the monitor has stopped")),
        }
    }
}

/// What replicas and sentinels send on their own account.
fn is_housekeeping(line: &str) -> bool {
    let command = line.split("] ").nth(1).unwrap_or_default();
    ["\"PING\"", "\"INFO\"", "\"REPLCONF\"", "\"PUBLISH\" \"__sentinel__"]
        .iter()
        .any(|own| command.starts_with(own))
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
