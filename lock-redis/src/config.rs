//! How to reach a server and under which names to write there: from a URL or by serde.

use std::path::PathBuf;
use std::time::Duration;

use lock_core::url::{FromOption, host_port};
use lock_core::{Error, ErrorKind, OptionSpec, Result, Secret, StoreUrl};
use serde::{Deserialize, Deserializer, Serialize};

/// The options of a `redis://` URL, beside those of every store.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec { name: "prefix", default: "onelock", about: "what every key and channel starts with" },
    OptionSpec { name: "connect_timeout", default: "2s", about: "how long reaching the server may take" },
    OptionSpec { name: "request_timeout", default: "2s", about: "how long the server may take to answer" },
    OptionSpec { name: "tls_ca", default: "the system's", about: "a PEM file with the authorities to trust" },
    OptionSpec { name: "tls_cert", default: "none", about: "a PEM file with the client's certificate" },
    OptionSpec { name: "tls_key", default: "none", about: "a PEM file with the client's key" },
    OptionSpec {
        name: "tls_insecure",
        default: "false",
        about: "do not check the server's certificate: tests only",
    },
    OptionSpec {
        name: "allow_eviction",
        default: "false",
        about: "use a server that may evict locks when its memory is full",
    },
];

/// How to reach one Redis server. Its `Debug` shows no password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// A host name or an address (IPv6 without brackets).
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of the database.
    pub database: u32,
    /// The user of the access list; the server's default user when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password. It is read by serde and never written.
    #[serde(skip_serializing, deserialize_with = "secret")]
    pub password: Option<Secret>,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A PEM file with the authorities to trust, instead of the system's.
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the client's certificate, for servers that ask for one.
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    pub tls_key: Option<PathBuf>,
    /// Whether to accept any certificate. Whoever stands in between can then take and break locks.
    pub tls_insecure: bool,
    /// What every key and channel starts with: 1 to 64 of ASCII letters, digits, `-`, `_`, `.` and `:`.
    pub prefix: String,
    /// How long reaching the server may take, the wait between attempts included.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How long the server may take to answer. A connection that does not answer is replaced.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Whether to use a server whose `maxmemory-policy` may evict locks, or their counters, when its memory is full.
    pub allow_eviction: bool,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 6379,
            database: 0,
            username: None,
            password: None,
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_insecure: false,
            prefix: "onelock".into(),
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(2),
            allow_eviction: false,
        }
    }
}

impl RedisConfig {
    /// The server at `host` and `port`, everything else as by default.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, ..Self::default() }
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        let prefix_ok = (1..=64).contains(&self.prefix.len())
            && self.prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
        if !prefix_ok {
            return Err(bad("the prefix is 1 to 64 of ASCII letters, digits, `-`, `_`, `.` and `:`"));
        }
        if self.host.is_empty() || self.host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(bad("the host is malformed"));
        }
        if self.port == 0 {
            return Err(bad("the port is a number from 1 to 65535"));
        }
        let times = Duration::from_millis(1)..=Duration::from_secs(600);
        if !times.contains(&self.connect_timeout) || !times.contains(&self.request_timeout) {
            return Err(bad("connect_timeout and request_timeout are from 1ms to 10m"));
        }
        if self.username.is_some() && self.password.is_none() {
            return Err(bad("a user without a password"));
        }
        let tls_options =
            self.tls_insecure || self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_key.is_some();
        if tls_options && !self.tls {
            return Err(bad("the options that start with tls need a rediss:// URL"));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(bad("tls_cert and tls_key go together"));
        }
        Ok(())
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "rediss" } else { "redis" }
    }

    /// The address without user, password and options.
    pub(crate) fn address(&self) -> String {
        format!("{}://{}/{}", self.scheme(), host_port(&self.host, Some(self.port)), self.database)
    }
}

impl TryFrom<StoreUrl> for RedisConfig {
    type Error = Error;

    /// Reads `redis://user:password@host:port/database?option=value`; `rediss` is the same over TLS.
    fn try_from(mut url: StoreUrl) -> Result<Self> {
        fn over<T: FromOption>(url: &mut StoreUrl, key: &str, field: &mut T) -> Result<()> {
            if let Some(value) = url.take(key)? {
                *field = value;
            }
            Ok(())
        }
        url.check_options(&[OPTIONS, lock_core::config::OPTIONS])?;
        let tls = match url.scheme.as_str() {
            "redis" => false,
            "rediss" => true,
            other => {
                return Err(bad(format!("`{other}` is not a scheme of Redis; those are redis and rediss")));
            }
        };
        let mut config = Self { tls, ..Self::default() };
        if !url.hosts.is_empty() {
            let (host, port) = url.single_host()?;
            config.host = host.to_owned();
            config.port = port.unwrap_or(config.port);
        }
        config.database = match url.path.trim_start_matches('/') {
            "" => 0,
            number => match number.parse() {
                Ok(database) if number.bytes().all(|b| b.is_ascii_digit()) => database,
                _ => return Err(bad("the path of a Redis URL is the number of a database")),
            },
        };
        config.username = url.username.take();
        config.password = url.password.take();
        over(&mut url, "prefix", &mut config.prefix)?;
        over(&mut url, "connect_timeout", &mut config.connect_timeout)?;
        over(&mut url, "request_timeout", &mut config.request_timeout)?;
        over(&mut url, "tls_insecure", &mut config.tls_insecure)?;
        over(&mut url, "allow_eviction", &mut config.allow_eviction)?;
        config.tls_ca = url.take::<String>("tls_ca")?.map(PathBuf::from);
        config.tls_cert = url.take::<String>("tls_cert")?.map(PathBuf::from);
        config.tls_key = url.take::<String>("tls_key")?.map(PathBuf::from);
        config.check()?;
        Ok(config)
    }
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
}

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<RedisConfig> {
        RedisConfig::try_from(url.parse::<StoreUrl>().unwrap())
    }

    #[test]
    fn a_full_url_is_read() {
        let config = read(
            "rediss://app:p%40ss@db.example:7000/3?prefix=shop&request_timeout=700ms&tls_ca=/ca.pem&ttl=15s",
        )
        .unwrap();
        assert_eq!((config.host.as_str(), config.port, config.database), ("db.example", 7000, 3));
        assert_eq!(config.username.as_deref(), Some("app"));
        assert_eq!(config.password.as_ref().unwrap().reveal(), "p@ss");
        assert!(config.tls && !config.tls_insecure);
        assert_eq!(config.tls_ca.as_deref(), Some("/ca.pem".as_ref()));
        assert_eq!(config.request_timeout, Duration::from_millis(700));
        assert_eq!(config.address(), "rediss://db.example:7000/3");
        assert_eq!(read("redis://").unwrap(), RedisConfig::default());
        assert_eq!(read("redis://[::1]/").unwrap().address(), "redis://[::1]:6379/0");
    }

    #[test]
    fn what_cannot_work_is_refused_before_any_connection() {
        for url in [
            "redis://h/x",
            "redis://h/-1",
            "redis://h/+1",
            "redis://h/1/2",
            "redis://a,b",
            "redis://user@h",
            "redis://h?prefix=",
            "redis://h?prefix=a{b}",
            "redis://h?prefix=a*",
            "redis://h?tls_ca=/x",
            "rediss://h?tls_cert=/x",
            "redis://h?request_timeout=0s",
            "redis://h?connect_timeout=1h",
            "redis://h?tls_insecure=maybe",
            "redis+sentinel://h",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        let text = read("redis://h?prefx=a").unwrap_err().to_string();
        assert!(text.contains("`prefx`") && text.contains("prefix") && text.contains("ttl"), "{text}");
    }

    #[test]
    fn serde_reads_a_password_and_never_writes_it() {
        let config: RedisConfig =
            serde_json::from_str(r#"{"host": "h", "password": "hunter2", "request_timeout": "1s"}"#).unwrap();
        assert_eq!(config.password.as_ref().unwrap().reveal(), "hunter2");
        let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(serde_json::from_str::<RedisConfig>(r#"{"hots": "h"}"#).is_err());
    }
}
