//! The shared suite on a quorum of five servers that know nothing of each other.

mod counters;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::Need;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, Harness, PASSWORD, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::servers::redis::{RedisServer, Setup};
use onelock_conformance::servers::resp::Resp;
use onelock_conformance::verdict::Verdict;
use onelock_core::driver::opening;
use onelock_core::{Backend, Capabilities, Driver, quorum};

const MEMBERS: usize = 5;
/// For what needs servers of its own: enough for a majority.
const FEW: usize = 3;

/// What the store must declare on servers that keep append-only files.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::of_lines();
    caps.permits = false;
    caps.fifo = false;
    caps.push = false;
    caps.list = false;
    caps.resume = false;
    caps
};

const DRIVER: Driver = Driver::new("quorum", &["quorum"], |url, context| {
    opening(async move { quorum::open(url, &[onelock_redis::DRIVER], &[], context).await })
})
.capabilities(CAPABILITIES)
.options(quorum::OPTIONS);

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
        Ok(Box::new(Running { proxies: Proxies::default(), servers }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&DRIVER, url).await
    }
}

struct Running {
    proxies: Proxies,
    servers: Vec<RedisServer>,
}

impl Running {
    async fn say(&self, server: usize, command: &[&str]) -> Verdict<Vec<String>> {
        Resp::connect(self.servers[server].address()).await?.call(command).await
    }

    /// The counters of a server and the rest.
    async fn keys(&self, server: usize) -> Verdict<(Vec<String>, Vec<String>)> {
        Ok(self.say(server, &["KEYS", "*"]).await?.into_iter().partition(|key| counters::is_counter(key)))
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(DRIVER)
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        let members = self.servers.iter().map(|server| format!("redis://{}", server.address()));
        let url = quorum_of(members, ("request_timeout=5s%26namespace=onelock2", "5s"));
        Ok(Some(open_by(&DRIVER, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        let members = self.servers.iter().map(|server| format!("redis://{}", server.address()));
        Ok(quorum_of(members, PATIENT))
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let mut members = Vec::new();
        for server in &self.servers {
            members.push(format!("redis://{}", self.proxies.way(server.address(), link).await?));
        }
        Ok(quorum_of(members.into_iter(), HASTY))
    }

    /// All of them at once: what one of them does alone nobody may notice.
    async fn restart(&self) -> Verdict {
        let restarts = self.servers.iter().map(RedisServer::restart);
        futures_util::future::try_join_all(restarts).await.map(|_| ())
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.servers.iter().try_for_each(|server| server.process.pause(stopped))
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
        let setup = Setup { password: Some(PASSWORD.to_owned()), ..Setup::default() };
        Ok(Credentials::of(servers(FEW, &setup).await?, |servers, password| {
            let member = |server: &RedisServer| format!("redis://:{password}@{}", server.address());
            quorum_of(servers.iter().map(member), PATIENT)
        }))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_name()?;
        let setup = Setup { tls: Some(certificates.files().clone()), ..Setup::default() };
        let servers = servers(FEW, &setup).await?;
        // Within a member's URL an option is written so.
        Ok(Tls::of(servers, certificates, "%26tls_ca=", |servers, host, options| {
            let member = |server: &RedisServer| format!("rediss://{host}:{}", server.address().port());
            quorum_of(servers.iter().map(member), (options, "5s"))
        }))
    }
}

fn main() -> ExitCode {
    onelock_conformance::run(Five)
}
