//! How to reach Redis and under which names to write there: by serde, or from a URL (see `url.rs`).

mod url;

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::toolkit::{Given, checks, options};
use onelock_core::{Credentials, Error, ErrorKind, Host, Result, Secret};
use redis::Client;
use serde::{Deserialize, Serialize};

/// How the servers stand together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    #[default]
    Single,
    /// A master and its replicas, watched by sentinels: the hosts are the sentinels'.
    Sentinel {
        /// The name under which the sentinels watch the master.
        master: String,
    },
    /// A cluster: the hosts are some of its nodes.
    Cluster,
}

/// How a lock is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layout {
    /// A line of entries: everything this project offers.
    #[default]
    Line,
    /// One key, as `SET name value NX PX` makes it: exclusive locks that exclude the users of other libraries.
    Plain,
}

/// Whether the server, as a member of a quorum, has a vote after it has restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Gate {
    /// It has: it keeps every write (`appendfsync always`), or restarts are somebody's business.
    #[default]
    None,
    /// Not until the other members vouch for it: its `run_id` must be the one that a quorum let in.
    RunId,
}

options! {
    /// How to reach Redis. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct RedisConfig {
        /// The server, the sentinels, or some nodes of the cluster.
        pub hosts: Vec<Host> = vec![Host::new("127.0.0.1", 6379)],
        /// How the servers stand together.
        pub topology: Topology = Topology::Single,
        /// The user of the access list; the server's default user when there is none.
        pub username: Option<String> = None,
        /// The password. It is read by serde and never written.
        pub password: Option<Secret> = None,
        /// Whether to speak TLS, to sentinels too.
        pub tls: bool = false,
    }
    options {
        /// The number of the database; a cluster has only 0.
        ///
        /// In a URL it is the end of the path, or this option where the path is that of a socket.
        #[alias = "db"]
        database: u32 = "0",
        /// What every key and channel starts with.
        ///
        /// 1 to 64 of ASCII letters, digits, `-`, `_`, `.` and `:`. In the plain layout it may be empty, and is so in a URL
        /// that does not give it: a lock's key is this and its name, nothing between.
        #[alias = "prefix"]
        namespace: String = "onelock",
        /// How long reaching the server may take, the wait between attempts included.
        connect_timeout: Duration = "2s",
        /// How long the server may take to answer.
        ///
        /// A connection that does not answer is replaced.
        request_timeout: Duration = "2s",
        /// How many replicas must have a lock before it counts as held or renewed.
        replicas: u32 = "0",
        /// How long they may take to say so.
        replicas_timeout: Duration = "500ms",
        /// How a lock is written; plain: one key, shared with users of SET NX PX (redis-py, redsync, node-redlock).
        layout: Layout = "line",
        /// As a member of a quorum; run_id: no vote after a restart until the others vouch for it.
        gate: Gate = "none",
        /// The user of the sentinels' access list.
        sentinel_username: Option<String> = "none",
        /// The password of the sentinels. It is read by serde and never written.
        sentinel_password: Option<Secret> = "none",
        /// A PEM file with the authorities to trust.
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        tls_key: Option<PathBuf> = "none",
        /// Do not check the server's certificate: tests only.
        ///
        /// Anyone in between can then take and break locks.
        tls_insecure: bool = "false",
        /// Use a server that may evict locks, or their counters, when its memory is full.
        allow_eviction: bool = "false",
        /// The replicas of a single server are never promoted: tokens are fencing although it has some.
        ///
        /// A promoted replica may have an older counter, so without this or [`replicas`](Self::replicas) a server with
        /// replicas declares no fencing.
        never_promoted: bool = "false",
    }
    skip {
        /// Asked for the user and the password of each new connection, instead of those above.
        pub credentials: Option<Credentials>,
        pub(crate) client: Option<Given<Client>>,
    }
}

impl RedisConfig {
    /// The server at `host` and `port`, everything else as by default.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { hosts: vec![Host::new(host, port)], ..Self::default() }
    }

    /// The server that `client` leads to, with its database, user, password and TLS; everything else as by default. The
    /// locks have a connection of their own, opened by this client.
    #[must_use]
    pub fn of_client(client: Client) -> Self {
        let info = client.get_connection_info();
        let host = match info.addr() {
            redis::ConnectionAddr::Tcp(host, port) | redis::ConnectionAddr::TcpTls { host, port, .. } => {
                Host::new(host.clone(), *port)
            }
            redis::ConnectionAddr::Unix(path) => Host::new(path.to_string_lossy(), 0),
            _ => Host::new("unknown", 1),
        };
        let tls = matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. });
        let database = u32::try_from(info.redis_settings().db()).unwrap_or_default();
        Self { hosts: vec![host], tls, database, client: Some(Given::new(client)), ..Self::default() }
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        let (line, single) = (self.layout == Layout::Line, self.topology == Topology::Single);
        let spaced =
            |text: &str| text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control());
        let letters = self.namespace.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
        let in_time = Duration::from_millis(1)..self.request_timeout;
        let is_sentinel = matches!(self.topology, Topology::Sentinel { .. });
        let nameless = matches!(&self.topology, Topology::Sentinel { master } if spaced(master));
        let no_user = self.credentials.is_none() && self.username.is_none() && self.password.is_none();
        let lone = |user: &Option<String>, password: &Option<Secret>| user.is_some() && password.is_none();
        let sentinels_own = self.sentinel_username.is_some() || self.sentinel_password.is_some();
        let tls_options =
            self.tls_insecure || self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_key.is_some();
        let wrong = [
            (
                !letters || !(usize::from(line)..=64).contains(&self.namespace.len()),
                "namespace is 1 to 64 of ASCII letters, digits, `-`, `_`, `.` and `:`",
            ),
            (
                self.hosts.is_empty() || (self.hosts.len() > 1 && single),
                "one server has one host; several are for sentinels and clusters",
            ),
            (nameless, "sentinels need the name of the master: redis+sentinel://host/name"),
            (
                sentinels_own && !is_sentinel,
                "sentinel_username and sentinel_password need a redis+sentinel:// URL",
            ),
            (self.topology == Topology::Cluster && self.database != 0, "a cluster has only database 0"),
            (self.replicas > 64, "replicas is at most 64"),
            (
                self.replicas > 0 && !in_time.contains(&self.replicas_timeout),
                "replicas_timeout is from 1ms to less than request_timeout",
            ),
            (
                self.never_promoted && !single,
                "never_promoted is for single servers: sentinels and clusters promote replicas",
            ),
            (
                self.gate != Gate::None && !(single && line),
                "a gate is for single servers that are members of a quorum, in the layout of a line",
            ),
            (lone(&self.username, &self.password), "a user without a password"),
            (lone(&self.sentinel_username, &self.sentinel_password), "a user without a password"),
            (
                tls_options && !self.tls,
                "the options that start with tls need a URL of TLS, such as rediss://",
            ),
            (self.tls && self.is_socket(), "a Unix socket has no TLS"),
            (
                self.client.is_some() && !(single && no_user),
                "a client of the application's leads to one server, and has its user and password",
            ),
        ];
        wrong.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, text)| Err(bad(*text)))?;
        checks::hosts(&self.hosts)?;
        checks::times(&[self.connect_timeout, self.request_timeout])?;
        checks::pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        checks::credentials(self.credentials.as_ref(), self.username.as_deref(), self.password.as_ref())?;
        if self.tls && self.client.is_none() && !cfg!(feature = "tls") {
            Err(no_tls("TLS to Redis"))
        } else {
            Ok(())
        }
    }

    /// How to reach the sentinels: as the servers, by a user of their own.
    pub(crate) fn of_sentinels(&self) -> Self {
        let (username, password) = (self.sentinel_username.clone(), self.sentinel_password.clone());
        Self { username, password, database: 0, credentials: None, ..self.clone() }
    }

    fn is_socket(&self) -> bool {
        self.hosts.iter().any(Host::is_socket)
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> String {
        if self.is_socket() {
            return "redis+unix".to_owned();
        }
        let kind = match self.topology {
            Topology::Single => "",
            Topology::Sentinel { .. } => "+sentinel",
            Topology::Cluster => "+cluster",
        };
        format!("redis{}{kind}", if self.tls { "s" } else { "" })
    }

    /// The address without user, password and options.
    pub(crate) fn address(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        let path = match &self.topology {
            Topology::Single if self.is_socket() => String::new(),
            Topology::Single => format!("/{}", self.database),
            Topology::Sentinel { master } => format!("/{master}/{}", self.database),
            Topology::Cluster => String::new(),
        };
        format!("{}://{}{path}", self.scheme(), hosts.join(","))
    }
}

/// Says which features bring `what`.
pub(crate) fn no_tls(what: &str) -> Error {
    Error::not_compiled(what, &["tls-ring", "tls-aws-lc"])
}

pub(crate) fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_reads_a_password_and_never_writes_it() {
        let config: RedisConfig = serde_json::from_str(
            r#"{"hosts": [{"host": "h", "port": 1}], "password": "hunter2", "request_timeout": "1s"}"#,
        )
        .unwrap();
        assert_eq!(config.password.as_ref().unwrap().reveal(), "hunter2");
        let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(serde_json::from_str::<RedisConfig>(r#"{"hots": "h"}"#).is_err());
    }
}
