//! How to reach an ensemble and under which path to write there: from a URL or by serde.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::driver::Opening;
use onelock_core::url::host_port;
use onelock_core::{Backend, Clock, Driver, Error, ErrorKind, OptionSpec, Result, Secret, StoreUrl};
use serde::{Deserialize, Deserializer, Serialize};

use crate::backend::ZkBackend;
use crate::keys;

/// How `zk:`, `zookeeper:` and `zks:` URLs are opened. The path is the node above all names; a user and a password mean
/// digest authentication, and nodes that only this user may touch. `zks` is TLS.
pub const DRIVER: Driver = Driver {
    name: "zookeeper",
    schemes: &["zk", "zookeeper", "zks"],
    example: "zk://zk1:2181,zk2:2181,zk3:2181/locks",
    about: "Apache ZooKeeper, laid out as Curator's InterProcessMutex",
    capabilities: ZkBackend::declared(Duration::from_secs(2), Duration::from_secs(32)),
    options: OPTIONS,
    open,
    gate: onelock_core::quorum::no_gate,
};

/// The options of a URL, beside those of every store.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "tick",
        default: "2s",
        about: "the tickTime of the servers, or more; leases start at two ticks",
    },
    OptionSpec { name: "connect_timeout", default: "5s", about: "how long opening a session may take" },
    OptionSpec { name: "request_timeout", default: "5s", about: "how long the server may take to answer" },
    OptionSpec { name: "tls_ca", default: "the system's", about: "a PEM file with the authorities to trust" },
    OptionSpec { name: "tls_cert", default: "none", about: "a PEM file with the client's certificate" },
    OptionSpec { name: "tls_key", default: "none", about: "a PEM file with the client's key" },
];

const PORT: u16 = 2181;
/// Where names are without a path in the URL.
const PATH: &str = "/onelock";

/// How to reach a ZooKeeper ensemble. Its `Debug` shows no password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZkConfig {
    /// Host names or addresses (IPv6 without brackets) and ports.
    pub hosts: Vec<(String, u16)>,
    /// The node above all names. Created on demand. `/` puts names at the root.
    pub path: String,
    /// The user of digest authentication. With one, nodes are made so that only this user may touch them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password. It is read by serde and never written.
    #[serde(skip_serializing, deserialize_with = "secret")]
    pub password: Option<Secret>,
    /// The `tickTime` of the servers, or more. Sessions are asked for with two ticks to spare.
    #[serde(with = "onelock_core::toolkit::human_time")]
    pub tick: Duration,
    /// How long opening a session may take.
    #[serde(with = "onelock_core::toolkit::human_time")]
    pub connect_timeout: Duration,
    /// How long the server may take to answer; a connection that says nothing for so long is replaced.
    #[serde(with = "onelock_core::toolkit::human_time")]
    pub request_timeout: Duration,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A PEM file with the authorities to trust, instead of the system's.
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the client's certificate, for servers that ask for one.
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    pub tls_key: Option<PathBuf>,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
}

impl Default for ZkConfig {
    fn default() -> Self {
        Self {
            hosts: vec![("127.0.0.1".into(), PORT)],
            path: PATH.into(),
            username: None,
            password: None,
            tick: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
        }
    }
}

/// The least number of tries in one round of the driver.
const ROUND: usize = 16;

impl ZkConfig {
    /// The servers at these hosts and ports, everything else as by default.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = (String, u16)>) -> Self {
        Self { hosts: hosts.into_iter().collect(), ..Self::default() }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        let mut config = Self::default();
        if url.hosts.is_empty() {
            return Err(bad("the URL names no host"));
        }
        config.hosts = url.hosts.iter().map(|(host, port)| (host.clone(), port.unwrap_or(PORT))).collect();
        if !url.path.is_empty() {
            config.path.clone_from(&url.path);
        }
        config.username = url.username.take();
        config.password = url.password.take();
        config.tls = url.scheme == "zks";
        let times = [
            ("tick", &mut config.tick),
            ("connect_timeout", &mut config.connect_timeout),
            ("request_timeout", &mut config.request_timeout),
        ];
        for (name, time) in times {
            if let Some(value) = url.take(name)? {
                *time = value;
            }
        }
        let files = [
            ("tls_ca", &mut config.tls_ca),
            ("tls_cert", &mut config.tls_cert),
            ("tls_key", &mut config.tls_key),
        ];
        for (name, file) in files {
            *file = url.take::<String>(name)?.map(PathBuf::from);
        }
        config.check()?;
        Ok(config)
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(bad("no host is named"));
        }
        let malformed = |host: &str| {
            host.is_empty()
                || host.contains(|c: char| c.is_whitespace() || c.is_control() || "/,@".contains(c))
        };
        if self.hosts.iter().any(|(host, port)| malformed(host) || *port == 0) {
            return Err(bad("a host or a port is malformed"));
        }
        keys::base(&self.path)?;
        let times = Duration::from_millis(10)..=Duration::from_secs(600);
        if ![self.tick, self.connect_timeout, self.request_timeout].iter().all(|time| times.contains(time)) {
            return Err(bad("tick, connect_timeout and request_timeout are from 10ms to 10m"));
        }
        match (&self.username, &self.password) {
            (None, None) => {}
            (Some(user), Some(_)) if !user.contains(':') => {}
            (Some(_), Some(_)) => return Err(bad("a user name has no colon")),
            _ => return Err(bad("a user and a password come together")),
        }
        let tls_files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        if !self.tls && tls_files.iter().any(|file| file.is_some()) {
            return Err(bad("TLS options without TLS; its scheme is zks"));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(bad("a client certificate and its key come together"));
        }
        if self.tls && !cfg!(feature = "zk-tls") {
            return Err(Error::not_compiled("TLS to ZooKeeper", &["zk-tls"]));
        }
        Ok(())
    }

    /// The address without user and password.
    #[must_use]
    pub fn address(&self) -> String {
        let scheme = if self.tls { "zks" } else { "zk" };
        format!("{scheme}://{}{}", self.servers(), self.path)
    }

    fn servers(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|(host, port)| host_port(host, Some(*port))).collect();
        hosts.join(",")
    }

    /// The servers as the driver takes them, again and again: after each round in which no server took the session it
    /// waits twice as long as after the one before, so with short rounds a client would still be waiting long after an
    /// election that took its time has ended.
    pub(crate) fn cluster(&self) -> String {
        vec![self.servers(); ROUND.div_ceil(self.hosts.len().max(1))].join(",")
    }
}

fn open(url: StoreUrl, clock: Arc<dyn Clock>) -> Opening {
    Box::pin(async move {
        let config = ZkConfig::from_url(url)?;
        Ok(Arc::new(ZkBackend::connect(config, clock).await?) as Arc<dyn Backend>)
    })
}

pub(crate) fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("ZooKeeper: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<ZkConfig> {
        ZkConfig::from_url(url.parse()?)
    }

    #[test]
    fn a_round_of_the_driver_has_many_tries() {
        let config = read("zk://a,b:2182,c/locks").unwrap();
        let cluster = config.cluster();
        assert!(cluster.split(',').count() >= ROUND, "{cluster}");
        for host in ["a:2181", "b:2182", "c:2181"] {
            assert_eq!(cluster.split(',').filter(|one| *one == host).count(), 6, "{cluster}");
        }
        assert!(config.address().ends_with("a:2181,b:2182,c:2181/locks"), "{}", config.address());
    }

    #[test]
    fn a_url_names_hosts_path_and_options() {
        let config = read("zk://me:hunter2@a,b:7,[::1]/x/y?tick=200ms&request_timeout=1s").unwrap();
        assert_eq!(config.hosts, [("a".into(), 2181), ("b".into(), 7), ("::1".into(), 2181)]);
        assert_eq!((config.path.as_str(), config.tick), ("/x/y", Duration::from_millis(200)));
        assert_eq!(config.address(), "zk://a:2181,b:7,[::1]:2181/x/y");
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
        assert_eq!(read("zookeeper://a").unwrap().path, "/onelock");
        assert!(read("zks://a").unwrap().tls);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for bad in [
            "zk://",
            "zk://a/zookeeper/x",
            "zk://a//b",
            "zk://me@a",
            "zk://m%3Ae:x@a",
            "zk://:x@a",
            "zk://a?tick=0s",
            "zk://a?tls_ca=/x",
            "zks://a?tls_cert=/x",
            "zk://a?request_timeout=soon",
        ] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad}");
        }
    }

    #[test]
    fn serde_reads_it_and_refuses_the_unknown() {
        let config: ZkConfig =
            serde_json::from_str(r#"{"hosts": [["a", 1]], "username": "me", "password": "x", "tick": "1s"}"#)
                .unwrap();
        assert_eq!(config.password.as_ref().map(Secret::reveal), Some("x"));
        config.check().unwrap();
        let error = serde_json::from_str::<ZkConfig>(r#"{"tik": "1s"}"#).unwrap_err().to_string();
        assert!(error.contains("tik") && error.contains("tick"), "{error}");
    }
}
