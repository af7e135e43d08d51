//! Servers of etcd, alone or three together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::hosts::Hosts;
use super::process::Process;
use super::tls::Files;
use super::{Place, asked, free_port};
use crate::verdict::Verdict;

const PROGRAM: &str = "etcd";

/// Whether the servers that are installed end living leases when a leader that stood still goes on: it still asks for what had
/// ended by its own count. Mended in 3.4.31 and 3.5.13 (etcd's issue 15247).
#[must_use]
pub fn deposed_leaders_revoke() -> bool {
    static DO: OnceLock<bool> = OnceLock::new();
    *DO.get_or_init(|| {
        let version = std::process::Command::new(PROGRAM).arg("--version").output();
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

/// One member.
#[derive(Debug)]
pub struct Member {
    program: &'static str,
    arguments: Vec<OsString>,
    host: Ipv4Addr,
    port: u16,
    metrics: u16,
    /// The password of `root`, once it is asked for.
    root: OnceLock<String>,
    process: Process,
}

impl Member {
    /// A server of its own.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn single(tls: Option<&Files>) -> Verdict<Self> {
        Self::with(tls, &[]).await
    }

    /// A server of its own with more arguments.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn with(tls: Option<&Files>, more: &[String]) -> Verdict<Self> {
        Self::alone(Place::Memory, tls, more).await
    }

    /// A server of its own that keeps its data in this place, with more arguments.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn in_place(place: Place, more: &[String]) -> Verdict<Self> {
        Self::alone(place, None, more).await
    }

    /// Kills it, takes from its data what was not synced, and starts it again.
    ///
    /// # Errors
    /// When it was not started for this, or does not come back.
    pub async fn cut_power(&self) -> Verdict {
        self.process.cut_power().await?;
        self.launch().await
    }

    async fn alone(place: Place, tls: Option<&Files>, more: &[String]) -> Verdict<Self> {
        let mut member = Self::prepared(place, Ipv4Addr::LOCALHOST, "one", free_port()?, None, tls)?;
        member.arguments.extend(more.iter().map(OsString::from));
        member.launch().await?;
        Ok(member)
    }

    /// The members of a cluster of three.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn three() -> Verdict<Vec<Self>> {
        let mut places = Vec::new();
        for name in ["a", "b", "c"] {
            places.push((name.to_owned(), Ipv4Addr::LOCALHOST, free_port()?));
        }
        Self::cluster(&places).await
    }

    /// The members of a cluster of three, each on a host of its own.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn three_on(hosts: &Hosts) -> Verdict<Vec<Self>> {
        let peer = free_port()?;
        let places: Vec<_> = (0..3).map(|i| (hosts.name(i), hosts.address(i), peer)).collect();
        Self::cluster(&places).await
    }

    /// The members with these names, hosts and ports for each other. Another host is known by the member's name.
    async fn cluster(places: &[(String, Ipv4Addr, u16)]) -> Verdict<Vec<Self>> {
        let all: Vec<_> =
            places.iter().map(|(name, at, peer)| format!("{name}=http://{at}:{peer}")).collect();
        let mut members = Vec::new();
        for (name, at, peer) in places {
            let all = all.join(",");
            let mut member = Self::prepared(Place::Memory, *at, name, *peer, Some(&all), None)?;
            if !at.is_loopback() {
                let words = ["netns", "exec", name, PROGRAM].map(OsString::from);
                member.arguments.splice(0..0, words);
                member.program = "ip";
            }
            member.spawn()?;
            members.push(member);
        }
        for member in &members {
            member.ready().await?;
        }
        Ok(members)
    }

    fn prepared(
        place: Place,
        host: Ipv4Addr,
        name: &str,
        peer: u16,
        cluster: Option<&str>,
        tls: Option<&Files>,
    ) -> Verdict<Self> {
        let (process, port, metrics) = (Process::new(place, "data")?, free_port()?, free_port()?);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let peer = format!("http://{host}:{peer}");
        let alone = format!("{name}={peer}");
        let mut arguments: Vec<OsString> = Vec::new();
        let mut say = |key: &str, value: &str| arguments.push(format!("--{key}={value}").into());
        say("name", name);
        say("data-dir", &process.data().display().to_string());
        say("listen-client-urls", &format!("{scheme}://{host}:{port}"));
        let known_as = if host.is_loopback() { "localhost".to_owned() } else { host.to_string() };
        say("advertise-client-urls", &format!("{scheme}://{known_as}:{port}"));
        say("listen-peer-urls", &peer);
        say("initial-advertise-peer-urls", &peer);
        say("initial-cluster", cluster.unwrap_or(&alone));
        say("initial-cluster-state", "new");
        say("listen-metrics-urls", &format!("http://{host}:{metrics}"));
        // The gateway would be a client of its own.
        say("enable-grpc-gateway", "false");
        say("heartbeat-interval", "50");
        say("election-timeout", "500");
        say("logger", "zap");
        say("log-level", "error");
        // The least there is: these passwords are no secrets.
        say("bcrypt-cost", "4");
        if let Some(files) = tls {
            say("cert-file", &files.certificate.display().to_string());
            say("key-file", &files.key.display().to_string());
        }
        Ok(Self { program: PROGRAM, arguments, host, port, metrics, root: OnceLock::new(), process })
    }

    fn spawn(&self) -> Verdict {
        self.process.start(Vec::new(), self.program, self.arguments.clone())
    }

    /// What it has written.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.process.log()
    }

    async fn launch(&self) -> Verdict {
        self.spawn()?;
        self.ready().await
    }

    /// Waits until it has a leader and serves.
    ///
    /// # Errors
    /// When it does neither soon, or has ended.
    pub async fn ready(&self) -> Verdict {
        let healthy = || async { self.get("/health").await.is_ok_and(|answer| answer.contains("\"true\"")) };
        self.process.until(healthy).await
    }

    async fn get(&self, path: &str) -> Verdict<String> {
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        asked((self.host, self.metrics).into(), &request).await
    }

    /// What it counts, by the name of the counter and its labels.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metrics(&self) -> Verdict<Vec<(String, f64)>> {
        let text = self.get("/metrics").await?;
        let read = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(read).collect())
    }

    /// How many messages of clients it has received, streams included, by method.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn received(&self) -> Verdict<Vec<(String, u64)>> {
        let method = |name: &str| {
            let rest = name.strip_prefix("grpc_server_msg_received_total{")?;
            Some(rest.split("grpc_method=\"").nth(1)?.split('"').next()?.to_owned())
        };
        let mut counts = BTreeMap::new();
        for (name, value) in self.metrics().await? {
            if let Some(method) = method(&name) {
                // Two services may have a method of one name.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter")]
                let value = value as u64;
                *counts.entry(method).or_default() += value;
            }
        }
        Ok(counts.into_iter().collect())
    }

    /// Whether it leads the others.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn leads(&self) -> Verdict<bool> {
        Ok(self.metrics().await?.iter().any(|(name, value)| name == "etcd_server_is_leader" && *value > 0.0))
    }

    /// How many connections clients have open.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn connections(&self) -> Verdict<u64> {
        let table = std::fs::read_to_string("/proc/net/tcp")?;
        let here = format!("0100007F:{:04X}", self.port);
        let open = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some(&here) && words.nth(1) == Some("01")
        };
        Ok(table.lines().filter(open).count() as u64)
    }

    /// Where it listens to clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same, with its host.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }

    /// The URL of its locks.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.address())
    }

    /// Kills it.
    ///
    /// # Errors
    /// When that fails.
    pub fn kill(&self) -> Verdict {
        self.process.kill()
    }

    /// Kills it if it runs, and starts it on the same data and ports.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.launch().await
    }

    /// Stops it where it is, or lets it go on; returns when it has come to a stand.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self, stopped: bool) -> Verdict {
        self.process.pause(stopped)
    }

    /// The password of its user `root`: set once it asks for one.
    #[must_use]
    pub fn root(&self) -> &OnceLock<String> {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let old = |version| is_before_the_mend(&format!("etcd Version: {version}\nGit SHA: Not provided\n"));
        assert!(["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12"].into_iter().all(old));
        assert!(!["3.4.31", "3.5.13", "3.6.0", "4.0.0"].into_iter().any(old));
    }
}
