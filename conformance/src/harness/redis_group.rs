//! Groups of redis-servers, shared by the cases of a run: sentinels with a master, or a cluster.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Backend, Capabilities, Driver};
use tokio::sync::{mpsc, oneshot};

use super::redis::{FOREIGN, IsCounter, PATIENT, Watcher, keys_of_line};
use super::{Certificates, Credentials, Harness, PASSWORD, Store, Tls, open_by};
use crate::case::Need;
use crate::faults::{Link, Proxy};
use crate::servers::free_port;
use crate::servers::redis::Setup;
use crate::servers::redis_group::{Group, Plan, is_client};
use crate::servers::resp::Resp;
use crate::servers::rewriter::{Ports, Rewriter};
use crate::verdict::{Context as _, Stop, Verdict};

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
    pool: Arc<Pool>,
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
        let pool = Pool::new(plan.clone());
        Self { name, driver, capabilities, is_counter, plan, upkeep, pool }
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

    fn unit(&self) -> Duration {
        Duration::from_millis(400)
    }

    fn lacks(&self, _need: Need) -> Option<String> {
        None
    }

    fn upkeep_cost(&self) -> u64 {
        self.upkeep
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let group = self.pool.take().await?;
        Ok(Box::new(Running {
            driver: self.driver,
            is_counter: self.is_counter,
            plan: self.plan.clone(),
            ways: Mutex::default(),
            planted: Mutex::default(),
            watchers: tokio::sync::Mutex::default(),
            spent: AtomicBool::new(false),
            pool: Arc::clone(&self.pool),
            group: Some(group),
        }))
    }

    async fn start_group(&self) -> Verdict<Box<dyn Store>> {
        self.start().await
    }

    fn has_groups(&self) -> bool {
        true
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&self.driver, url).await
    }
}

type Made = oneshot::Sender<Verdict<Group>>;

/// Groups that are free. They are started by a thread of their own, because a server ends with the thread that started it.
struct Pool {
    free: Mutex<Vec<Group>>,
    wanted: Mutex<Option<mpsc::UnboundedSender<Made>>>,
    plan: Plan,
}

impl Pool {
    fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), wanted: Mutex::default(), plan })
    }

    async fn take(&self) -> Verdict<Group> {
        loop {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(group) = free else { break };
            if group.clean().await? {
                return Ok(group);
            }
        }
        let (made, group) = oneshot::channel();
        self.maker()?.send(made).map_err(|_| Stop::failed("the thread that starts servers has ended"))?;
        group.await?
    }

    fn maker(&self) -> Verdict<mpsc::UnboundedSender<Made>> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = &*wanted {
            return Ok(wanted.clone());
        }
        let (send, mut asked) = mpsc::unbounded_channel::<Made>();
        let plan = self.plan.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("redis groups".into()).spawn(move || {
            runtime.block_on(async {
                let mut starting = tokio::task::JoinSet::new();
                while let Some(made) = asked.recv().await {
                    let plan = plan.clone();
                    starting.spawn(async move {
                        // A case that gave up meanwhile: then the group ends here.
                        let _ = made.send(Group::start(plan).await);
                    });
                }
            });
        })?;
        *wanted = Some(send.clone());
        Ok(send)
    }

    fn give_back(&self, group: Group) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(group);
    }
}

struct Running {
    driver: Driver,
    is_counter: IsCounter,
    plan: Plan,
    ways: Mutex<Vec<(Proxy, Rewriter)>>,
    planted: Mutex<Vec<String>>,
    watchers: tokio::sync::Mutex<Vec<Watcher>>,
    /// Something was done to it that the next case must not meet.
    spent: AtomicBool,
    pool: Arc<Pool>,
    group: Option<Group>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group.take().filter(|_| !self.spent.load(Ordering::Relaxed)) {
            self.pool.give_back(group);
        }
    }
}

impl Running {
    fn group(&self) -> Verdict<&Group> {
        self.group.as_ref().context("the group")
    }

    async fn admins(&self) -> Verdict<Vec<Resp>> {
        let group = self.group()?;
        let mut admins = Vec::new();
        for address in group.masters() {
            admins.push(group.connect(*address).await?);
        }
        Ok(admins)
    }

    /// Counters, and the rest.
    async fn keys(&self) -> Verdict<(Vec<String>, Vec<String>)> {
        let mut keys = Vec::new();
        for mut admin in self.admins().await? {
            keys.extend(admin.call(&["KEYS", "*"]).await?.texts());
        }
        Ok(keys.into_iter().partition(|key| (self.is_counter)(key)))
    }

    /// Runs a command on the node that serves its key.
    async fn on_key(&self, command: &[&str]) -> Verdict<Vec<String>> {
        let mut last = Stop::failed("no server");
        for mut admin in self.admins().await? {
            match admin.call(command).await {
                Ok(reply) => return Ok(reply.texts()),
                Err(error) if error.to_string().contains("MOVED") => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
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
        Ok(self.group()?.url())
    }

    async fn requests(&self) -> Verdict<u64> {
        let mut watchers = self.watchers.lock().await;
        if watchers.is_empty() {
            for address in self.group()?.masters() {
                watchers.push(Watcher::start(*address).await?);
            }
        }
        let mut sum = 0;
        for watcher in &mut *watchers {
            sum += watcher.count().await?;
        }
        Ok(sum)
    }

    /// Of the node that has most: a client has one to each.
    async fn connections(&self) -> Verdict<u64> {
        let watchers = self.watchers.lock().await;
        let mut most = 0;
        for mut admin in self.admins().await? {
            let mut own = vec![format!(" addr={} ", admin.local())];
            own.extend(watchers.iter().map(|watcher| format!(" addr={} ", watcher.admin.local())));
            let list = admin.call(&["CLIENT", "LIST"]).await?.texts().concat();
            let others = |line: &&str| is_client(line) && !own.iter().any(|own| line.contains(own));
            most = most.max(list.lines().filter(others).count() as u64);
        }
        Ok(most)
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let group = self.group()?;
        // What the servers tell of each other must lead over the link, too.
        let ports = Ports::default();
        let (mut told, mut ways) = (Vec::new(), Vec::new());
        for address in group.addresses() {
            let rewriter = Rewriter::start(address, &ports).await?;
            let proxy = Proxy::start(rewriter.address(), link).await?;
            told.push((address.port(), proxy.address().port()));
            ways.push((proxy, rewriter));
        }
        let by = |door: &SocketAddr| {
            let (_, port) = told.iter().find(|(real, _)| *real == door.port()).context("a door")?;
            Ok(format!("127.0.0.1:{port}"))
        };
        let doors: Vec<_> = group.doors().iter().map(by).collect::<Verdict<_>>()?;
        // Short, so that a case with lost replies does not take minutes.
        let url = format!("{}?request_timeout=500ms&connect_timeout=500ms", group.url_by(&doors, ""));
        ports.set(told).map_err(|_| Stop::failed("the ports were told twice"))?;
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).extend(ways);
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
        self.group()?.servers().first().context("a master")?.pause(stopped)
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        Ok(self.keys().await?.1)
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(self.keys().await?.0.len() as u64)
    }

    async fn plant(&self, text: &str) -> Verdict {
        let ours = keys_of_line(self, text).await?;
        for key in &ours {
            self.on_key(&["SET", key, FOREIGN]).await?;
        }
        self.planted.lock().unwrap_or_else(PoisonError::into_inner).extend(ours);
        Ok(())
    }

    async fn planted(&self, _name: &str) -> Verdict<bool> {
        let keys = self.planted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for key in &keys {
            if self.on_key(&["GET", key]).await? != [FOREIGN] {
                return Ok(false);
            }
        }
        Ok(!keys.is_empty())
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
