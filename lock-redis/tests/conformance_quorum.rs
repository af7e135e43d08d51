//! The shared suite on a quorum of five servers that know nothing of each other.

mod counters;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::Need;
use lock_conformance::faults::{Link, Proxy};
use lock_conformance::harness::redis::open_by;
use lock_conformance::harness::{Credentials, Harness, Store, Tls};
use lock_conformance::servers::redis::{RedisServer, Setup};
use lock_conformance::servers::resp::Resp;
use lock_conformance::servers::{data_folder, free_port, tls};
use lock_conformance::verdict::Verdict;
use lock_core::{Backend, Capabilities, Driver, quorum};

const MEMBERS: usize = 5;
/// For what needs servers of its own: enough for a majority.
const FEW: usize = 3;

/// What the store must declare on servers that keep append-only files.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::full();
    caps.permits = false;
    caps.fifo = false;
    caps.push = false;
    caps.list = false;
    caps.resume = false;
    caps
};

const DRIVER: Driver = Driver {
    name: "quorum",
    schemes: &["quorum"],
    example: "quorum://?members=redis://a|redis://b|redis://c",
    about: "a majority of Redis servers",
    capabilities: CAPABILITIES,
    options: quorum::OPTIONS,
    open: |url, clock| {
        Box::pin(async move {
            let quorum = quorum::open(url, &[lock_redis::DRIVER], clock).await?;
            Ok(Arc::new(quorum) as Arc<dyn Backend>)
        })
    },
    gate: quorum::no_gate,
};

/// What a loaded machine may need to answer: a busy member is not a dead one.
const PATIENT: (&str, &str) = ("request_timeout=5s", "5s");
/// Short, so that a case with lost replies does not take minutes.
const HASTY: (&str, &str) = ("request_timeout=500ms%26connect_timeout=500ms", "500ms");

fn quorum_of(members: impl Iterator<Item = String>, (options, member_timeout): (&str, &str)) -> String {
    let members: Vec<_> = members.map(|member| format!("{member}?{options}")).collect();
    format!("quorum://?member_timeout={member_timeout}&members={}", members.join("|"))
}

async fn servers(count: usize, setup: &Setup) -> Verdict<Vec<RedisServer>> {
    let starting = (0..count).map(|_| RedisServer::start(setup.clone()));
    futures_util::future::try_join_all(starting).await
}

struct Five;

#[async_trait]
impl Harness for Five {
    fn name(&self) -> &'static str {
        "redis-quorum"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Requests => "a verb is a request to each member",
            Need::Connections => "a client has a connection to each member",
            Need::Foreign => {
                "a client renews what it holds only; the suite of the members shows what they do"
            }
            Need::WaiterLease => "nobody waits in a line",
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let servers = servers(MEMBERS, &Setup::default()).await?;
        Ok(Box::new(Running { proxies: Mutex::default(), servers }))
    }

    async fn open(&self, url: &str) -> lock_core::Result<Arc<dyn Backend>> {
        open_by(&DRIVER, url).await
    }
}

struct Running {
    proxies: Mutex<Vec<Proxy>>,
    servers: Vec<RedisServer>,
}

impl Running {
    async fn say(&self, server: usize, command: &[&str]) -> Verdict<Vec<String>> {
        Ok(Resp::connect(self.servers[server].address()).await?.call(command).await?.texts())
    }

    /// The counters of a server and the rest.
    async fn keys(&self, server: usize) -> Verdict<(Vec<String>, Vec<String>)> {
        Ok(self.say(server, &["KEYS", "*"]).await?.into_iter().partition(|key| counters::is_counter(key)))
    }
}

#[async_trait]
impl Store for Running {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&DRIVER, &self.url()?).await?)
    }

    fn url(&self) -> Verdict<String> {
        let members = self.servers.iter().map(|server| format!("redis://{}", server.address()));
        Ok(quorum_of(members, PATIENT))
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let mut proxies = Vec::new();
        for server in &self.servers {
            proxies.push(Proxy::start(server.address(), link).await?);
        }
        let url = quorum_of(proxies.iter().map(|proxy| format!("redis://{}", proxy.address())), HASTY);
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).extend(proxies);
        Ok(url)
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&DRIVER, &self.url_by(link).await?).await?)
    }

    /// All of them at once: what one of them does alone nobody may notice.
    async fn restart(&self) -> Verdict {
        let restarts = self.servers.iter().map(RedisServer::restart);
        futures_util::future::try_join_all(restarts).await.map(|_| ())
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.servers.iter().try_for_each(|server| server.pause(stopped))
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let mut left = Vec::new();
        for server in 0..MEMBERS {
            left.extend(self.keys(server).await?.1.into_iter().map(|key| format!("member {server}: {key}")));
        }
        Ok(left)
    }

    async fn counters(&self) -> Verdict<u64> {
        let mut most = 0;
        for server in 0..MEMBERS {
            most = most.max(self.keys(server).await?.0.len() as u64);
        }
        Ok(most)
    }

    fn unreachable_url(&self) -> Verdict<String> {
        let mut members = Vec::new();
        for _ in 0..FEW {
            members.push(format!("redis://127.0.0.1:{}", free_port()?));
        }
        Ok(quorum_of(members.into_iter(), ("connect_timeout=300ms", "300ms")))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let (right, wrong) = ("correct-h0rse-battery", "wr0ng-h0rse-battery");
        let setup = Setup { password: Some(right.to_owned()), ..Setup::default() };
        let servers = servers(FEW, &setup).await?;
        let with = |password: &str| {
            let member = |server: &RedisServer| format!("redis://:{password}@{}", server.address());
            quorum_of(servers.iter().map(member), PATIENT)
        };
        Ok(Credentials {
            good: with(right),
            bad: with(wrong),
            secrets: vec![right.to_owned(), wrong.to_owned()],
            keep: Box::new(servers),
        })
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let folder = data_folder()?;
        let right = tls::authority(folder.path(), "right", "localhost")?;
        let other = tls::authority(folder.path(), "other", "localhost")?;
        let servers = servers(FEW, &Setup { tls: Some(right.clone()), ..Setup::default() }).await?;
        let by = |host: &str, trust: String| {
            let member = |server: &RedisServer| format!("rediss://{host}:{}", server.address().port());
            quorum_of(servers.iter().map(member), (&format!("connect_timeout=1s{trust}"), "5s"))
        };
        let trusting = |files: &tls::Files| format!("%26tls_ca={}", files.authority.display());
        Ok(Tls {
            good: by("localhost", trusting(&right)),
            bad: vec![
                (by("localhost", trusting(&other)), "an authority that did not sign the certificate"),
                (by("127.0.0.1", trusting(&right)), "a host the certificate is not for"),
                (by("localhost", String::new()), "an authority the system does not know"),
            ],
            keep: Box::new((servers, folder)),
        })
    }
}

fn main() -> ExitCode {
    lock_conformance::run(Five)
}
