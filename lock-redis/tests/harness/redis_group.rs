//! Groups of redis-servers, shared by the cases of a run: sentinels with a master, or a cluster.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::case::Need;
use onelock_conformance::faults::{Link, Proxy};
use onelock_conformance::harness::{Certificates, Credentials, Harness, PASSWORD, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_core::toolkit::Mutex;
use onelock_core::{Backend, Capabilities, Driver};

use super::redis::PATIENT;
use super::redis_inside::{Inside, IsCounter};
use super::rewriter::rewrite;
use super::servers::{Group, Plan};

/// Long against what a loaded machine needs to answer: no case of the suite is about a failover.
const PATIENCE: Duration = Duration::from_secs(15);

/// Redis with sentinels or as a cluster, through a driver.
pub struct RedisGroup {
    name: &'static str,
    driver: Driver,
    capabilities: Capabilities,
    is_counter: IsCounter,
    plan: Plan,
    /// More where one server takes one script for many names and this one takes one for each bucket.
    upkeep: u64,
    free: Arc<Mutex<Vec<Group>>>,
}

impl RedisGroup {
    /// A master, its replica and three sentinels.
    #[must_use]
    pub fn sentinel(driver: Driver, capabilities: Capabilities, is_counter: IsCounter) -> Self {
        Self::new("redis-sentinel", Plan::sentinel(PATIENCE), 100, driver, capabilities, is_counter)
    }

    /// Three nodes.
    #[must_use]
    pub fn cluster(driver: Driver, capabilities: Capabilities, is_counter: IsCounter) -> Self {
        // A script takes the entries of one bucket only, and what is due together is of most of the 128.
        Self::new("redis-cluster", Plan::cluster(0, PATIENCE), 1500, driver, capabilities, is_counter)
    }

    fn new(
        name: &'static str,
        plan: Plan,
        upkeep: u64,
        driver: Driver,
        capabilities: Capabilities,
        is_counter: IsCounter,
    ) -> Self {
        Self { name, driver, capabilities, is_counter, plan, upkeep, free: Arc::default() }
    }

    /// One that is free, emptied, or a new one.
    async fn group(&self) -> Verdict<Group> {
        loop {
            let free = self.free.lock().pop();
            let Some(group) = free else { return Group::start(self.plan.clone()).await };
            if group.clean().await? {
                return Ok(group);
            }
        }
    }
}

#[async_trait]
impl Harness for RedisGroup {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn lacks(&self, _need: Need) -> Option<String> {
        None
    }

    fn upkeep_cost(&self) -> u64 {
        self.upkeep
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let group = self.group().await?;
        Ok(Box::new(Running {
            driver: self.driver,
            inside: Inside::new(group.masters().to_vec(), self.is_counter),
            plan: self.plan.clone(),
            ways: Mutex::default(),
            spent: AtomicBool::new(false),
            free: Arc::clone(&self.free),
            group: Some(group),
        }))
    }

    async fn start_group(&self) -> Verdict<Box<dyn Store>> {
        self.start().await
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&self.driver, url).await
    }
}

struct Running {
    driver: Driver,
    inside: Inside,
    plan: Plan,
    ways: Mutex<Vec<Proxy>>,
    /// Something was done to it that the next case must not meet.
    spent: AtomicBool,
    free: Arc<Mutex<Vec<Group>>>,
    group: Option<Group>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group.take().filter(|_| !self.spent.load(Ordering::Relaxed)) {
            self.free.lock().push(group);
        }
    }
}

impl Running {
    fn group(&self) -> Verdict<&Group> {
        self.group.as_ref().context("the group")
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
        let url = format!("{}{PATIENT}&namespace=onelock2", self.url()?);
        Ok(Some(open_by(&self.driver, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        Ok(self.group()?.url())
    }

    async fn requests(&self) -> Verdict<u64> {
        self.inside.requests().await
    }

    async fn connections(&self) -> Verdict<u64> {
        self.inside.connections().await
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let group = self.group()?;
        // What the servers tell of each other must lead over the link, too.
        let ports = Arc::new(OnceLock::<Vec<(u16, u16)>>::new());
        let (mut told, mut ways) = (Vec::new(), Vec::new());
        for address in group.servers.iter().chain(&group.sentinels).map(RedisServer::address) {
            let told_there = Arc::clone(&ports);
            let replies = move |bytes: &mut Vec<u8>| {
                if let Some(ports) = told_there.get() {
                    rewrite(bytes, ports);
                }
            };
            let proxy = Proxy::rewriting(address, link, Arc::new(replies)).await?;
            told.push((address.port(), proxy.address().port()));
            ways.push(proxy);
        }
        let by = |door: &SocketAddr| {
            let (_, port) = told.iter().find(|(real, _)| *real == door.port()).context("a door")?;
            Ok(format!("127.0.0.1:{port}"))
        };
        let doors: Vec<_> = group.doors().iter().map(by).collect::<Verdict<_>>()?;
        // Short, so that a case with lost replies does not take minutes.
        let url = format!("{}?request_timeout=500ms&connect_timeout=500ms", group.url_by(&doors, ""));
        ports.set(told).map_err(|_| Stop::failed("the ports were told twice"))?;
        self.ways.lock().extend(ways);
        Ok(url)
    }

    async fn restart(&self) -> Verdict {
        self.spent.store(true, Ordering::Relaxed);
        self.group()?.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.spent.store(true, Ordering::Relaxed);
        self.group()?.pause(stopped)
    }

    async fn stop_leader(&self, stopped: bool) -> Verdict {
        self.spent.store(true, Ordering::Relaxed);
        self.group()?.servers.first().context("a master")?.process.pause(stopped)
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
        let door = format!("127.0.0.1:{}", free_port()?);
        let url = self.group()?.url_by(&[door], "");
        Ok(format!("{url}?connect_timeout=300ms&request_timeout=300ms"))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let mut plan = self.plan.clone();
        plan.servers.password = Some(PASSWORD.to_owned());
        let group = Group::start(plan).await?;
        Ok(Credentials::of(group, |group, password| {
            let doors: Vec<_> = group.doors().iter().map(ToString::to_string).collect();
            group.url_by(&doors, &format!(":{password}@"))
        }))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_address()?;
        let mut plan = self.plan.clone();
        plan.servers = Setup { tls: Some(certificates.files().clone()), ..Setup::default() };
        let group = Group::start(plan).await?;
        Ok(Tls::of(group, certificates, "&tls_ca=", |group, host, options| {
            let doors: Vec<_> = group.doors().iter().map(|door| format!("{host}:{}", door.port())).collect();
            format!("{}?{options}", group.url_by(&doors, ""))
        }))
    }
}
