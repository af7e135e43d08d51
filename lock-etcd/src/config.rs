//! How to reach a cluster and under which prefix to write there: from a URL or by serde.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::url::{FromOption, host_port};
use onelock_core::{Error, ErrorKind, OptionSpec, Result, Secret, StoreUrl};
use serde::{Deserialize, Deserializer, Serialize};

/// The options of an `etcd://` URL, beside those of every store.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "prefix",
        default: "onelock/",
        about: "what every key starts with: ends with a slash, or empty to share locks with etcdctl and Go",
    },
    OptionSpec { name: "connect_timeout", default: "2s", about: "how long reaching one member may take" },
    OptionSpec {
        name: "request_timeout",
        default: "3s",
        about: "how long the cluster may take to answer, the tries on other members included",
    },
    OptionSpec {
        name: "password_file",
        default: "none",
        about: "a file with the user's password, instead of the URL's: read again at every login, so it may be rotated",
    },
    OptionSpec { name: "tls_ca", default: "the system's", about: "a PEM file with the authorities to trust" },
    OptionSpec { name: "tls_cert", default: "none", about: "a PEM file with the client's certificate" },
    OptionSpec { name: "tls_key", default: "none", about: "a PEM file with the client's key" },
    OptionSpec {
        name: "tls_name",
        default: "the host",
        about: "the name the server's certificate must be for",
    },
];

/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 255;

/// How to reach one etcd cluster. Its `Debug` shows no password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EtcdConfig {
    /// The members of the cluster to talk to, each a host name or an address (IPv6 without brackets) and its client port. One
    /// is used at a time; another takes over when it fails.
    pub endpoints: Vec<(String, u16)>,
    /// The etcd user; authentication is not used when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password. It is read by serde and never written.
    #[serde(skip_serializing, deserialize_with = "secret")]
    pub password: Option<Secret>,
    /// A file with the password instead. It is read again at every login, so the password may be rotated.
    pub password_file: Option<PathBuf>,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A PEM file with the authorities to trust, instead of the system's.
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the client's certificate, for servers that ask for one.
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    pub tls_key: Option<PathBuf>,
    /// The name the server's certificate must be for, when it is not the host's.
    pub tls_name: Option<String>,
    /// What every key starts with: empty, or at most 255 bytes that end with a slash.
    pub prefix: String,
    /// How long reaching one member may take.
    #[serde(with = "onelock_core::toolkit::human_time")]
    pub connect_timeout: Duration,
    /// How long the cluster may take to answer, the tries on other members included.
    #[serde(with = "onelock_core::toolkit::human_time")]
    pub request_timeout: Duration,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            endpoints: vec![("127.0.0.1".into(), PORT)],
            username: None,
            password: None,
            password_file: None,
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_name: None,
            prefix: "onelock/".into(),
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(3),
        }
    }
}

const PORT: u16 = 2379;

impl EtcdConfig {
    /// These endpoints, everything else as by default.
    #[must_use]
    pub fn new<H: Into<String>>(endpoints: impl IntoIterator<Item = (H, u16)>) -> Self {
        let endpoints = endpoints.into_iter().map(|(host, port)| (host.into(), port)).collect();
        Self { endpoints, ..Self::default() }
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        if self.endpoints.is_empty() {
            return Err(bad("no member of the cluster is named"));
        }
        for (host, port) in &self.endpoints {
            let malformed = |c: char| c.is_whitespace() || c.is_control() || "/@?#[]".contains(c);
            if host.is_empty() || host.contains(malformed) {
                return Err(bad("the host of a member is malformed"));
            }
            if *port == 0 {
                return Err(bad("a port is a number from 1 to 65535"));
            }
        }
        if !self.prefix.is_empty() && !self.prefix.ends_with('/') {
            return Err(bad("the prefix ends with a slash, or is empty"));
        }
        if self.prefix.len() > MAX_PREFIX || self.prefix.contains(char::is_control) {
            return Err(bad("the prefix has at most 255 bytes and no control characters"));
        }
        let times = Duration::from_millis(1)..=Duration::from_secs(600);
        if !times.contains(&self.connect_timeout) || !times.contains(&self.request_timeout) {
            return Err(bad("connect_timeout and request_timeout are from 1ms to 10m"));
        }
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
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(bad("tls_cert and tls_key go together"));
        }
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
        let endpoints: Vec<_> = self.endpoints.iter().map(|(h, p)| host_port(h, Some(*p))).collect();
        format!("{}://{}", self.scheme(), endpoints.join(","))
    }
}

impl TryFrom<StoreUrl> for EtcdConfig {
    type Error = Error;

    /// Reads `etcd://user:password@host:port,host:port/?option=value`; `etcds` is the same over TLS.
    fn try_from(mut url: StoreUrl) -> Result<Self> {
        fn over<T: FromOption>(url: &mut StoreUrl, key: &str, field: &mut T) -> Result<()> {
            if let Some(value) = url.take(key)? {
                *field = value;
            }
            Ok(())
        }
        let path = |url: &mut StoreUrl, key: &str| -> Result<Option<PathBuf>> {
            Ok(url.take::<String>(key)?.map(PathBuf::from))
        };
        url.check_options(&[OPTIONS, onelock_core::config::OPTIONS])?;
        let tls = match url.scheme.as_str() {
            "etcd" => false,
            "etcds" => true,
            other => return Err(bad(format!("{other} is not a scheme of etcd"))),
        };
        if !matches!(url.path.as_str(), "" | "/") {
            return Err(bad("an etcd URL has no path; the option `prefix` says what keys start with"));
        }
        let endpoints = url.hosts.iter().map(|(host, port)| (host.clone(), port.unwrap_or(PORT))).collect();
        let mut config = Self { endpoints, tls, ..Self::default() };
        config.username = url.username.clone();
        config.password = url.password.clone();
        over(&mut url, "prefix", &mut config.prefix)?;
        over(&mut url, "connect_timeout", &mut config.connect_timeout)?;
        over(&mut url, "request_timeout", &mut config.request_timeout)?;
        config.password_file = path(&mut url, "password_file")?;
        config.tls_ca = path(&mut url, "tls_ca")?;
        config.tls_cert = path(&mut url, "tls_cert")?;
        config.tls_key = path(&mut url, "tls_key")?;
        config.tls_name = url.take("tls_name")?;
        config.check()?;
        Ok(config)
    }
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Secret>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
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
        assert_eq!(config.endpoints, [("a".into(), 1), ("::1".into(), 2379), ("c".into(), 2379)]);
        assert_eq!(config.prefix, "x/");
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
            "etcd://h?prefix=%0A/",
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
        assert!(config("etcd://h?prefix=").unwrap().prefix.is_empty());
    }

    #[test]
    fn every_option_is_read() {
        for option in OPTIONS {
            let error = config(&format!("etcd://h?{}=zz", option.name));
            let error = error.err().map(|e| e.to_string()).unwrap_or_default();
            assert!(!error.contains("has no option"), "{error}");
        }
        let unknown = config("etcd://h?nothing=1").unwrap_err().to_string();
        assert!(OPTIONS.iter().all(|option| unknown.contains(option.name)), "{unknown}");
    }

    #[test]
    fn serde_refuses_the_unknown() {
        let text = r#"{"endpoints": [["h", 1]], "password": "hunter2", "username": "me"}"#;
        let config: EtcdConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.password.unwrap().reveal(), "hunter2");
        assert!(serde_json::from_str::<EtcdConfig>(r#"{"host": "h"}"#).is_err());
    }
}
