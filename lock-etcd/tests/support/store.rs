//! The shared suite's view of a single etcd server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::GetOptions;
use onelock_conformance::case::Need;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, Harness, Store, Tls, open_by};
use onelock_conformance::servers::etcd::deposed_leaders_revoke;
use onelock_conformance::servers::free_port;
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::{Backend, Capabilities, Driver};
use onelock_etcd::DRIVER;

use super::server::{Admin as _, Member};

/// Each case has a server of its own.
#[derive(Default)]
pub(crate) struct Etcd {
    /// Whether clients have a user with the right that the README names, and no other.
    pub restricted: bool,
}

/// The password of that user.
const PASSWORD: &str = "apps-password";

#[async_trait]
impl Harness for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        super::capabilities()
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn hand_over_cost(&self) -> u64 {
        // Joining; opening a watch and ending it, a reading after each; leaving; a renewal, which is two.
        8
    }

    fn keeps_altered_connections(&self) -> bool {
        true // HTTP/2: its two ends share the state of their header compression.
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Foreign => {
                "any key in a line is somebody's entry: it is shown, waits its turn, and locks others out"
            }
            Need::Leader if deposed_leaders_revoke() => {
                "etcd before 3.4.31 and 3.5.13 ends living leases when a leader that stood still goes on (etcd's issue 15247)"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let member = Member::single(None).await?;
        if self.restricted {
            member.with_a_user(PASSWORD).await?;
        }
        Ok(Box::new(Running {
            members: vec![member],
            proxies: Proxies::default(),
            restricted: self.restricted,
        }))
    }

    async fn start_group(&self) -> Verdict<Box<dyn Store>> {
        let members = Member::three().await?;
        if self.restricted {
            first(&members)?.with_a_user(PASSWORD).await?;
        }
        Ok(Box::new(Running { members, proxies: Proxies::default(), restricted: self.restricted }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&DRIVER, url).await
    }
}

fn first(members: &[Member]) -> Verdict<&Member> {
    members.first().context("a member")
}

struct Running {
    members: Vec<Member>,
    proxies: Proxies,
    restricted: bool,
}

impl Running {
    fn member(&self) -> Verdict<&Member> {
        first(&self.members)
    }

    /// A URL of this store by these addresses.
    fn by(&self, addresses: &[SocketAddr]) -> String {
        let user = if self.restricted { format!("app:{PASSWORD}@") } else { String::new() };
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("etcd://{user}{}", hosts.join(","))
    }
}

#[async_trait]
impl Store for Running {
    fn driver(&self) -> Verdict<Driver> {
        Ok(DRIVER)
    }

    fn url(&self) -> Verdict<String> {
        let addresses: Vec<_> = self.members.iter().map(Member::address).collect();
        Ok(self.by(&addresses))
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.member()?.received().await?.into_iter().map(|(_, count)| count).sum())
    }

    async fn connections(&self) -> Verdict<u64> {
        self.member()?.connections()
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let mut ways = Vec::new();
        for member in &self.members {
            ways.push(self.proxies.way(member.address(), link).await?);
        }
        Ok(format!("{}?request_timeout=500ms&connect_timeout=500ms", self.by(&ways)))
    }

    async fn restart(&self) -> Verdict {
        self.member()?.restart().await
    }

    async fn pause(&self, stopped: bool) -> Verdict {
        self.member()?.pause(stopped).await
    }

    async fn stop_leader(&self, stopped: bool) -> Verdict {
        for member in &self.members {
            if !stopped || member.leads().await? {
                member.pause(stopped).await?;
            }
        }
        Ok(())
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let options = GetOptions::new().with_all_keys().with_keys_only();
        let keys = self.member()?.admin().await?.get("", Some(options)).await?;
        Ok(keys.kvs().iter().map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect())
    }

    async fn counters(&self) -> Verdict<u64> {
        // Numbers are revisions of the cluster.
        Ok(0)
    }

    fn unreachable_url(&self) -> Verdict<String> {
        Ok(format!("etcd://127.0.0.1:{}?connect_timeout=300ms&request_timeout=300ms", free_port()?))
    }

    async fn with_password(&self) -> Verdict<Credentials> {
        let server = Member::single(None).await?;
        server.with_a_user(onelock_conformance::harness::PASSWORD).await?;
        Ok(Credentials::of(server, |server, password| format!("etcd://app:{password}@{}", server.address())))
    }

    async fn with_tls(&self) -> Verdict<Tls> {
        let certificates = Certificates::for_name()?;
        let server = Member::single(Some(certificates.files())).await?;
        Ok(Tls::of(server, certificates, "&tls_ca=", |server, host, options| {
            format!("etcds://{host}:{}?{options}", server.address().port())
        }))
    }
}
