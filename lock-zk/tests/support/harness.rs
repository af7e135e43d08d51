//! ZooKeeper for the shared suite. Servers take a second to start, so a case that has ended passes its own on to the
//! next; every case works under a path of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onelock_conformance::case::Need;
use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, Harness, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_core::{Backend, Capabilities, Driver, LockName};
use zookeeper_client as zk;

use super::counter::Counter;
use super::servers::ensemble;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};

const FOREIGN: &[u8] = b"somebody else's";
const OPTIONS: &str = "tick=200ms";

/// The node with the largest token epoch, which stays.
pub(crate) const EPOCH: &str = "%epoch";

/// Servers that wait for their next case.
static IDLE: Mutex<Vec<ZkServer>> = Mutex::new(Vec::new());

/// The suite's view of a server.
#[derive(Default)]
pub(crate) struct ZooKeeper {
    /// Whether clients have a user with the rights that the README names, on the node above the names, and no other right.
    pub restricted: bool,
}

/// The user of a restricted run.
pub(crate) const USER: (&str, &str) = ("keeper", "keepers-password");

/// Ends the servers that wait for a next case: what is static is never dropped.
pub(crate) fn end() {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Opens `url` as a client would: the options that all stores share are not the driver's.
pub(crate) async fn open(url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
    open_by(&onelock_zk::DRIVER, url).await
}

impl ZooKeeper {
    async fn on(&self, servers: Vec<ZkServer>) -> Verdict<Box<dyn Store>> {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let path = format!("/suite/{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        let counter = Counter::start(servers.first().context("a server")?.address(), &path)?;
        let running =
            Running { path, counter, proxies: Proxies::default(), servers, restricted: self.restricted };
        if self.restricted {
            running.restrict().await?;
        }
        Ok(Box::new(running))
    }
}

#[async_trait]
impl Harness for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn capabilities(&self) -> Capabilities {
        super::capabilities()
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::WaiterLease => {
                "a node lives as long as its session, which is long enough for the holder it may become"
            }
            // A process that is out of memory ends, and no caller can catch that.
            Need::Altered => {
                "the driver reserves memory for as many items as a reply claims to have: gigabytes when that was altered"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    fn hand_over_cost(&self) -> u64 {
        // Joining is two, a watch is one, and so is the look at the line when it fires; leaving and a renewal. Where
        // the line moves faster than watches are set, a look and a watch more.
        8
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let waiting = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let server = match waiting {
            Some(server) if server.mode().await.is_some() => server,
            _ => ZkServer::start(Setup::default()).await?,
        };
        self.on(vec![server]).await
    }

    async fn start_group(&self) -> Verdict<Box<dyn Store>> {
        self.on(ensemble().await?).await
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open(url).await
    }

    fn threads(&self) -> usize {
        // A server of each case is a Java machine.
        6
    }
}

struct Running {
    path: String,
    counter: Counter,
    proxies: Proxies,
    /// Those of a group end with their case.
    servers: Vec<ZkServer>,
    restricted: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(server) = self.servers.pop() else { return };
        if self.servers.is_empty() && server.process.pause(false).is_ok() {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        }
    }
}

impl Running {
    fn server(&self) -> Verdict<&ZkServer> {
        self.servers.first().context("the server")
    }

    /// Asks by a session of its own. Asks again, by another one, while a server that others keep busy is late for the driver: a session
    /// that was given up answers nothing any more.
    async fn patiently<T, F>(&self, ask: impl Fn(zk::Client) -> F) -> Verdict<T>
    where
        F: Future<Output = Result<T, zk::Error>>,
    {
        use zk::Error::{ConnectionLoss, NoHosts, SessionExpired, Timeout};
        let mut connector = zk::Client::connector().with_session_timeout(Duration::from_secs(10));
        if self.restricted {
            connector = connector.with_auth("digest", format!("{}:{}", USER.0, USER.1).as_bytes());
        }
        let (address, end) = (self.server()?.address().to_string(), Instant::now() + PATIENCE);
        loop {
            let asked = async { ask(connector.clone().connect(&address).await?).await };
            match asked.await {
                Err(Timeout | NoHosts | ConnectionLoss | SessionExpired) if Instant::now() < end => {}
                done => {
                    let server = self.server()?;
                    return done.map_err(|error| {
                        Stop::failed(format!(
                            "{error} from a server that has written: {}",
                            server.process.log()
                        ))
                    });
                }
            }
        }
    }

    /// Makes a node; an earlier attempt, whose answer was late, may have made it.
    async fn create(&self, path: &str, data: &[u8], acls: zk::Acls<'_>) -> Verdict {
        let mode = zk::CreateMode::Persistent.with_acls(acls);
        self.patiently(|admin| {
            let mode = mode.clone();
            async move {
                match admin.create(path, data, &mode).await {
                    Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        })
        .await
    }

    /// Makes a node and what is above it, open to all.
    async fn open_to_all(&self, path: &str) -> Verdict {
        self.patiently(|admin| async move {
            admin.mkdir(path, &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())).await
        })
        .await
    }

    /// Makes the node above the names, for the user and with the rights it needs.
    async fn restrict(&self) -> Verdict {
        let (suite, _) = self.path.rsplit_once('/').context("a path")?;
        self.open_to_all(suite).await?;
        let rights = zk::Permission::CREATE | zk::Permission::READ | zk::Permission::DELETE;
        let only = [zk::Acl::new(rights, zk::AuthId::authed())];
        self.create(&self.path, b"", only[..].into()).await
    }

    /// The nodes below the path.
    async fn nodes(&self) -> Verdict<Vec<String>> {
        self.patiently(|admin| async move {
            match admin.list_children(&self.path).await {
                Err(zk::Error::NoNode) => Ok(Vec::new()),
                other => other,
            }
        })
        .await
    }

    /// A URL of this store by these addresses.
    fn by(&self, addresses: &[SocketAddr], more: &str) -> String {
        let user = if self.restricted { format!("{}:{}@", USER.0, USER.1) } else { String::new() };
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("zk://{user}{}{}?{OPTIONS}{more}", hosts.join(","), self.path)
    }

    fn planted_path(&self, name: &str) -> Verdict<String> {
        Ok(format!("{}/{}", self.path, LockName::new(name)?.encoded()))
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(onelock_zk::DRIVER)
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        let beside = self.url()?.replace(&self.path, &format!("{}-2", self.path));
        Ok(Some(open(&beside).await?))
    }

    fn url(&self) -> Verdict<String> {
        let mut addresses = vec![self.counter.address()];
        addresses.extend(self.servers.iter().skip(1).map(ZkServer::address));
        Ok(self.by(&addresses, ""))
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.counter.counts().requests())
    }

    async fn connections(&self) -> Verdict<u64> {
        Ok(self.counter.counts().connections())
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let mut ways = Vec::new();
        for server in &self.servers {
            ways.push(self.proxies.way(server.address(), link).await?);
        }
        Ok(self.by(&ways, "&request_timeout=500ms&connect_timeout=1s"))
    }

    async fn restart(&self) -> Verdict {
        self.server()?.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.server()?.process.pause(stopped)
    }

    async fn stop_leader(&self, stopped: bool) -> Verdict {
        for server in &self.servers {
            if !stopped || server.mode().await.as_deref() == Some("leader") {
                server.process.pause(stopped)?;
            }
        }
        Ok(())
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let mut nodes = self.nodes().await?;
        nodes.retain(|node| node != EPOCH);
        Ok(nodes)
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(self.nodes().await?.iter().filter(|node| *node == EPOCH).count() as u64)
    }

    async fn plant(&self, name: &str) -> Verdict {
        let path = self.planted_path(name)?;
        self.open_to_all(&path).await?;
        self.create(&format!("{path}/theirs"), FOREIGN, zk::Acls::anyone_all()).await
    }

    async fn planted(&self, name: &str) -> Verdict<bool> {
        let path = &self.planted_path(name)?;
        self.patiently(|admin| async move {
            let children = admin.list_children(path).await?;
            let (data, stat) = admin.get_data(&format!("{path}/theirs")).await?;
            Ok(children == ["theirs"] && data == FOREIGN && stat.version == 0)
        })
        .await
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!("zk://127.0.0.1:{}?connect_timeout=300ms&request_timeout=300ms", free_port()?))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let address = self.server()?.address();
        let given = Credentials::of((), |(), password| {
            format!("zk://keeper:{password}@{address}{}-secret?{OPTIONS}", self.path)
        });
        // The node above the names belongs to whoever makes it: by the first lock.
        let backend = open(&given.good).await?;
        let first = onelock_conformance::ctx::exclusive(&LockName::new("first")?)?;
        let grant = onelock_conformance::ctx::held(&backend, &first).await?;
        backend.release(&onelock_conformance::ctx::ticket(&first, grant.token)).await?;
        backend.close().await?;
        Ok(given)
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        // A test is an application, and chooses. Another case may have done it.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let certificates = Certificates::for_name()?;
        let setup = Setup { tls: Some(certificates.files().clone()), ..Setup::default() };
        let server = ZkServer::start(setup).await?;
        Ok(Tls::of(server, certificates, "&tls_ca=", |server, host, options| {
            format!("zks://{host}:{}?{OPTIONS}&{options}", server.tls_port())
        }))
    }
}
