//! The shared suite's view of a single etcd server.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::GetOptions;
use onelock_conformance::case::Need;
use onelock_conformance::faults::{Link, Proxies};
use onelock_conformance::harness::{Certificates, Credentials, Harness, Store, Tls, open_by};
use onelock_conformance::servers::free_port;
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::{Backend, Capabilities, Driver};
use onelock_etcd::DRIVER;

use super::server::{Admin as _, Member, three};

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
                "etcd before 3.4.31 and 3.5.13 ends living leases when a leader that stalled goes on (etcd's issue 15247)"
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
        let members = three().await?;
        if self.restricted {
            first(&members)?.with_a_user(PASSWORD).await?;
        }
        Ok(Box::new(Running { members, proxies: Proxies::default(), restricted: self.restricted }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&DRIVER, url).await
    }
}

/// Whether the servers that are installed end living leases when a leader that stalled goes on: it still asks for what had
/// ended by its own count. Mended in 3.4.31 and 3.5.13 (etcd's issue 15247).
fn deposed_leaders_revoke() -> bool {
    static DO: OnceLock<bool> = OnceLock::new();
    *DO.get_or_init(|| {
        let version = std::process::Command::new("etcd").arg("--version").output();
        // A server that is missing fails where it is started.
        version.is_ok_and(|version| is_before_the_mend(&String::from_utf8_lossy(&version.stdout)))
    })
}

/// By what `etcd --version` prints.
fn is_before_the_mend(text: &str) -> bool {
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: ")).unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.trim().parse::<u32>().unwrap_or_default());
    let mut next = || parts.next().unwrap_or_default();
    match (next(), next(), next()) {
        (3, 4, patch) => patch < 31,
        (3, 5, patch) => patch < 13,
        version => version < (3, 4, 0),
    }
}

#[test]
fn old_servers_are_known() {
    let old = |version| is_before_the_mend(&format!("etcd Version: {version}\nGit SHA: Not provided\n"));
    assert!(["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12"].into_iter().all(old));
    assert!(!["3.4.31", "3.5.13", "3.6.0", "4.0.0"].into_iter().any(old));
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

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        // The user of the others has no rights there.
        let user = if self.restricted { format!("root:{PASSWORD}@") } else { String::new() };
        let url = format!("etcd://{user}{}?namespace=beside/", self.member()?.address());
        Ok(Some(open_by(&DRIVER, &url).await?))
    }

    fn url(&self) -> Verdict<String> {
        let addresses: Vec<_> = self.members.iter().map(Member::address).collect();
        Ok(self.by(&addresses))
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.member()?.received().await?.into_iter().map(|(_, count)| count).sum())
    }

    async fn connections(&self) -> Verdict<u64> {
        let table = std::fs::read_to_string("/proc/net/tcp")?;
        let here = format!("0100007F:{:04X}", self.member()?.port());
        let open = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some(&here) && words.nth(1) == Some("01")
        };
        Ok(table.lines().filter(open).count() as u64)
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
        self.member()?.process.pause(stopped)
    }

    async fn stop_leader(&self, stopped: bool) -> Verdict {
        for member in &self.members {
            let leads = |(name, value): &(String, f64)| name == "etcd_server_is_leader" && *value > 0.0;
            if !stopped || member.metrics().await?.iter().any(leads) {
                member.process.pause(stopped)?;
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
