//! How to reach an ensemble and under which path to write there: from a URL or by serde.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::toolkit::{checks, options};
use onelock_core::{Error, ErrorKind, Host, Result, Secret, StoreUrl};

use crate::keys;

const PORT: u16 = 2181;
/// Where names are without a path in the URL.
const PATH: &str = "/onelock";

options! {
    /// How to reach a ZooKeeper ensemble. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct ZkConfig {
        /// The servers.
        pub hosts: Vec<Host> = vec![Host::new("127.0.0.1", PORT)],
        /// The node above all names. Created on demand. `/` puts names at the root.
        pub path: String = PATH.into(),
        /// The user of digest authentication. With one, nodes are made so that only this user may touch them.
        pub username: Option<String> = None,
        /// The password. It is read by serde and never written.
        pub password: Option<Secret> = None,
        /// Whether to speak TLS.
        pub tls: bool = false,
    }
    options {
        /// The tickTime of the servers, or more; leases start at two ticks.
        tick: Duration = "2s",
        /// How long opening a session may take.
        connect_timeout: Duration = "5s",
        /// How long the server may take to answer.
        ///
        /// A connection that says nothing for so long is replaced; of several servers, after a twelfth of its session where that
        /// is less, but not within a second.
        request_timeout: Duration = "5s",
        /// A PEM file with the authorities to trust.
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        tls_key: Option<PathBuf> = "none",
    }
}

/// The least number of tries in one round of the driver.
const ROUND: usize = 32;

impl ZkConfig {
    /// The servers at these hosts and ports, everything else as by default.
    #[must_use]
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = (H, u16)>) -> Self {
        let hosts = hosts.into_iter().map(|(host, port)| Host::new(host, port)).collect();
        Self { hosts, ..Self::default() }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        let tls = url.scheme == "zks";
        let mut config = Self { hosts: url.hosts_or(PORT), tls, ..Self::default() };
        if !url.path.is_empty() {
            config.path.clone_from(&url.path);
        }
        config.username = url.username.take();
        config.password = url.password.take();
        config = config.merge_url(&mut url)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        let tls_files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        let wrong = [
            (self.hosts.iter().any(Host::is_socket), "a server of ZooKeeper has no Unix socket"),
            (self.username.is_some() != self.password.is_some(), "a user and a password go together"),
            (self.username.as_ref().is_some_and(|user| user.contains(':')), "a user name has no colon"),
            (
                !self.tls && tls_files.iter().any(|file| file.is_some()),
                "TLS options without TLS; its scheme is zks",
            ),
        ];
        wrong.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, text)| Err(bad(text)))?;
        keys::base(&self.path)?;
        checks::hosts(&self.hosts)?;
        checks::times(&[self.tick, self.connect_timeout, self.request_timeout])?;
        checks::pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        if self.tls && !cfg!(feature = "zk-tls") {
            return Err(Error::not_compiled("TLS to ZooKeeper", &["zk-tls"]));
        }
        #[cfg(feature = "zk-tls")]
        if self.tls && !self.hosts.iter().all(crate::tls::can_be_verified) {
            return Err(bad("no certificate can be for such a host"));
        }
        Ok(())
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "zks" } else { "zk" }
    }

    /// The address without user and password.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.servers(), self.path)
    }

    fn servers(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// The servers as the driver takes them, again and again: after each round in which no server took the session it
    /// waits twice as long as after the one before, so with short rounds a client would still be waiting long after an
    /// election that took its time has ended.
    pub(crate) fn cluster(&self) -> String {
        vec![self.servers(); ROUND.div_ceil(self.hosts.len().max(1))].join(",")
    }
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
            assert_eq!(cluster.split(',').filter(|one| *one == host).count(), 11, "{cluster}");
        }
        assert!(config.address().ends_with("a:2181,b:2182,c:2181/locks"), "{}", config.address());
    }

    #[test]
    fn a_url_names_hosts_path_and_options() {
        let config = read("zk://me:hunter2@a,b:7,[::1]/x/y?tick=200ms&request_timeout=1s").unwrap();
        assert_eq!(config.hosts, [Host::new("a", 2181), Host::new("b", 7), Host::new("::1", 2181)]);
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
            "zks://a,127.1/x",
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
