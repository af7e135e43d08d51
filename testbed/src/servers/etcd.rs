//! Servers of etcd, alone or three together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use super::process::Process;
use super::tls::Files;
use super::{Place, asked, free_port};
use crate::verdict::Verdict;

const PROGRAM: &str = "etcd";

/// One member.
#[derive(Debug)]
pub struct Member {
    arguments: Vec<OsString>,
    host: Ipv4Addr,
    port: u16,
    metrics: u16,
    /// The password of `root`, once it is asked for.
    root: OnceLock<String>,
    /// Its process.
    pub process: Process,
}

impl Member {
    /// A server of its own.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn single(tls: Option<&Files>) -> Verdict<Self> {
        Self::with(Place::Memory, tls, &[]).await
    }

    /// A server of its own that keeps its data in this place, with more arguments.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn with(place: Place, tls: Option<&Files>, more: &[String]) -> Verdict<Self> {
        let mut member = Self::prepared(place, Ipv4Addr::LOCALHOST, "one", free_port()?, None, tls)?;
        member.arguments.extend(more.iter().map(OsString::from));
        member.launch().await?;
        Ok(member)
    }

    /// A member of a cluster under this name, which listens to the others at this port. It is not ready yet. Another host than ours
    /// is known by the member's name.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn begin(name: &str, at: Ipv4Addr, peer: u16, cluster: &str) -> Verdict<Self> {
        let mut member = Self::prepared(Place::Memory, at, name, peer, Some(cluster), None)?;
        member.process.host = (!at.is_loopback()).then(|| name.to_owned());
        member.spawn()?;
        Ok(member)
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
        Ok(Self { arguments, host, port, metrics, root: OnceLock::new(), process })
    }

    fn spawn(&self) -> Verdict {
        self.process.start(Vec::new(), PROGRAM, self.arguments.clone())
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

    /// Kills it if it runs, and starts it on the same data and ports.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.launch().await
    }

    /// The password of its user `root`: set once it asks for one.
    #[must_use]
    pub fn root(&self) -> &OnceLock<String> {
        &self.root
    }
}
