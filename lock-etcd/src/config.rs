//! How to reach a cluster and under which prefix to write there: from a URL or by serde.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::Client;
use onelock_core::toolkit::{Given, checks, options};
use onelock_core::{Credentials, Error, ErrorKind, Host, Result, Secret, StoreUrl};

/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 255;

options! {
    /// How to reach one etcd cluster. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct EtcdConfig {
        /// The members of the cluster to talk to. One is used at a time; another takes over when it fails.
        pub hosts: Vec<Host> = vec![Host::new("127.0.0.1", PORT)],
        /// The etcd user; authentication is not used when there is none.
        pub username: Option<String> = None,
        /// The password. It is read by serde and never written.
        pub password: Option<Secret> = None,
        /// Whether to speak TLS.
        pub tls: bool = false,
    }
    options {
        /// What every key starts with: ends with a slash, or empty to share locks with etcdctl and Go.
        ///
        /// At most 255 bytes.
        #[alias = "prefix"]
        namespace: String = "onelock/",
        /// How long reaching one member may take.
        connect_timeout: Duration = "2s",
        /// How long the cluster may take to answer, the tries on other members included.
        request_timeout: Duration = "3s",
        /// A file with the user's password, instead of the URL's: read again at every login, so it may be rotated.
        password_file: Option<PathBuf> = "none",
        /// A PEM file with the authorities to trust.
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        tls_key: Option<PathBuf> = "none",
        /// The name the server's certificate must be for.
        tls_name: Option<String> = "the host",
    }
    skip {
        /// Asked for the user and the password at each login, instead of those above.
        pub credentials: Option<Credentials>,
        pub(crate) client: Option<Given<Client>>,
    }
}

const PORT: u16 = 2379;

impl EtcdConfig {
    /// These members, everything else as by default.
    #[must_use]
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = (H, u16)>) -> Self {
        let hosts = hosts.into_iter().map(|(host, port)| Host::new(host, port)).collect();
        Self { hosts, ..Self::default() }
    }

    /// The cluster that `client` leads to, by that client; everything else as by default.
    ///
    /// The driver spreads the requests of a client over its endpoints, also over one that has stopped answering: where
    /// that matters, name the [hosts](Self::hosts) instead. A client that logs in needs its [credentials](Self::credentials)
    /// here too, for when its token is refused.
    #[must_use]
    pub fn of_client(client: Client) -> Self {
        Self { hosts: vec![Host::new("(client)", PORT)], client: Some(Given::new(client)), ..Self::default() }
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        checks::hosts(&self.hosts)?;
        if self.hosts.iter().any(Host::is_socket) {
            return Err(bad("a member of etcd has no Unix socket"));
        }
        if !self.namespace.is_empty() && !self.namespace.ends_with('/') {
            return Err(bad("namespace ends with a slash, or is empty"));
        }
        if self.namespace.len() > MAX_PREFIX || self.namespace.contains(char::is_control) {
            return Err(bad("namespace has at most 255 bytes and no control characters"));
        }
        checks::times(&[self.connect_timeout, self.request_timeout])?;
        checks::credentials(self.credentials.as_ref(), self.username.as_deref(), self.password.as_ref())?;
        if self.password.is_some() && self.password_file.is_some() {
            return Err(bad("there is a password and a password_file"));
        }
        if self.username.is_some() != (self.password.is_some() || self.password_file.is_some()) {
            return Err(bad("a user and a password go together"));
        }
        let tls_options = self.tls_name.is_some()
            || [&self.tls_ca, &self.tls_cert, &self.tls_key].iter().any(|file| file.is_some());
        if tls_options && !self.tls {
            return Err(bad("the options that start with tls need an etcds:// URL"));
        }
        checks::pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        if self.tls && !cfg!(feature = "tls") {
            return Err(no_tls("TLS to etcd"));
        }
        Ok(())
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "etcds" } else { "etcd" }
    }

    /// The address without user, password and options.
    pub(crate) fn address(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        format!("{}://{}", self.scheme(), hosts.join(","))
    }
}

impl TryFrom<StoreUrl> for EtcdConfig {
    type Error = Error;

    /// Reads `etcd://user:password@host:port,host:port/?option=value`; `etcds` is the same over TLS.
    fn try_from(mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS, onelock_core::config::OPTIONS])?;
        let tls = match url.scheme.as_str() {
            "etcd" => false,
            "etcds" => true,
            other => return Err(bad(format!("{other} is not a scheme of etcd"))),
        };
        if !matches!(url.path.as_str(), "" | "/") {
            return Err(bad("an etcd URL has no path; the option `namespace` says what keys start with"));
        }
        let mut config = Self { hosts: url.hosts_or(PORT), tls, ..Self::default() };
        config.username = url.username.clone();
        config.password = url.password.clone();
        config = config.merge_url(&mut url)?;
        config.check()?;
        Ok(config)
    }
}

pub(crate) async fn read(file: &Path) -> Result<String> {
    tokio::fs::read_to_string(file).await.map_err(|e| {
        let text = format!("cannot read {}: {e}", file.display());
        Error::new(ErrorKind::InvalidConfig, text)
    })
}

/// Says which features bring `what`.
pub(crate) fn no_tls(what: &str) -> Error {
    Error::not_compiled(what, &["tls-ring", "tls-aws-lc"])
}

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<EtcdConfig> {
        EtcdConfig::try_from(url.parse::<StoreUrl>()?)
    }

    #[test]
    fn a_url_says_it_all() {
        let url = "etcds://me:hunter2@a:1,[::1],c/?prefix=x/&request_timeout=1s&tls_ca=/ca&ttl=9s&tls_name=n";
        let config = config(url).unwrap();
        assert_eq!(
            config.hosts,
            [("a", 1), ("::1", 2379), ("c", 2379)].map(|(host, port)| Host::new(host, port))
        );
        assert_eq!(config.namespace, "x/");
        assert_eq!(config.request_timeout, Duration::from_secs(1));
        assert!(config.tls && config.tls_ca.is_some());
        assert_eq!(config.tls_name.as_deref(), Some("n"));
        assert_eq!(config.address(), "etcds://a:1,[::1]:2379,c:2379");
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_before_any_connection() {
        for url in [
            "etcd://",
            "redis://h",
            "etcd://h/path",
            "etcd://h?prefix=x",
            "etcd://h?namespace=%0A/",
            "etcd://h?request_timeout=0s",
            "etcd://h?tls_ca=/ca",
            "etcds://h?tls_cert=/c",
            "etcd://user@h",
            "etcd://h?password_file=/p",
            "etcd://user:p@h?password_file=/p",
            "etcd://h?tll=1s",
        ] {
            assert_eq!(config(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        assert!(config("etcd://h?namespace=").unwrap().namespace.is_empty());
        assert_eq!(config("etcd://h?prefix=x/").unwrap().namespace, "x/");
    }

    #[test]
    fn every_option_is_read() {
        for option in EtcdConfig::OPTIONS {
            let error = config(&format!("etcd://h?{}=zz", option.name));
            let error = error.err().map(|e| e.to_string()).unwrap_or_default();
            assert!(!error.contains("has no option"), "{error}");
        }
        let unknown = config("etcd://h?nothing=1").unwrap_err().to_string();
        assert!(EtcdConfig::OPTIONS.iter().all(|option| unknown.contains(option.name)), "{unknown}");
    }

    #[test]
    fn serde_refuses_the_unknown() {
        let text = r#"{"hosts": [{"host": "h", "port": 1}], "password": "hunter2", "username": "me"}"#;
        let config: EtcdConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.password.unwrap().reveal(), "hunter2");
        assert!(serde_json::from_str::<EtcdConfig>(r#"{"host": "h"}"#).is_err());
    }
}
