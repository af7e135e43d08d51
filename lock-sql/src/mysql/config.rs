//! How to reach a server and which tables to use there, from a URL or a serde struct.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::toolkit::{Given, checks, options};
use onelock_core::{Credentials, Host, Result, Secret, StoreUrl};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::{ConnectOptions as _, MySqlPool};

use crate::hosts::{Endpoints, bad, is_plain};
use crate::{Durability, Tls};

options! {
    /// How to reach one server. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct MySqlConfig {
        /// The server; or a primary and its replicas, of which the one that takes writes is used.
        pub hosts: Vec<Host> = vec![Host::new("127.0.0.1", PORT)],
        /// The user. It needs SELECT, INSERT, UPDATE and DELETE on the table of the lines, SELECT and UPDATE on the two
        /// others, and CREATE and INSERT where they are to be made.
        pub username: String = String::new(),
        /// The password. It is read by serde and never written.
        pub password: Option<Secret> = None,
        /// The database, which must exist.
        pub database: String = String::new(),
    }
    options {
        /// What the names of the tables begin with.
        ///
        /// A lower-case ASCII letter or `_`, then those and digits, at most 48 (servers differ in how they treat upper-case
        /// letters).
        #[alias = "table_prefix"]
        namespace: String = "onelock_",
        /// Whether commits must wait for the disk; relaxed: take a server whose commits do not.
        ///
        /// It is the server that decides that, for all sessions (`innodb_flush_log_at_trx_commit`): without `relaxed` one
        /// that does not wait is refused.
        durability: Durability = "durable",
        /// Connections for the verbs; one more is for the waiters.
        ///
        /// From 1 to 100.
        #[alias = "pool"]
        connections: u16 = "8",
        /// How long reaching the server may take.
        connect_timeout: Duration = "5s",
        /// How long a verb may take.
        ///
        /// Waiting for row locks is included. A connection that does not answer is replaced.
        request_timeout: Duration = "5s",
        /// The longest pause between polls for the waiter that is next.
        ///
        /// From 1ms to 1s. All waiters of a client share one poll; it comes after a millisecond or two when something has moved.
        poll: Duration = "10ms",
        /// On MariaDB, send a verb as one compound block: faster.
        ///
        /// Without it, and on MySQL, it is several statements in one request: for a proxy that does not understand blocks.
        blocks: bool = "true",
        /// How much TLS to ask for: off, prefer, require, verify-ca or verify-full.
        tls: Tls = "prefer",
        /// A PEM file with the authorities to trust.
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        tls_key: Option<PathBuf> = "none",
        /// The server's Unix socket, instead of a host.
        socket: Option<PathBuf> = "none",
    }
    skip {
        /// Asked for the user and the password of each new connection, instead of those above.
        pub credentials: Option<Credentials>,
        pub(crate) pool: Option<Given<MySqlPool>>,
    }
}

const PORT: u16 = 3306;

impl MySqlConfig {
    /// The defaults for this user and database at `host`.
    #[must_use]
    pub fn new(host: impl Into<String>, username: impl Into<String>, database: impl Into<String>) -> Self {
        let hosts = vec![Host::new(host, PORT)];
        Self { hosts, username: username.into(), database: database.into(), ..Self::default() }
    }

    /// The server and the database that `pool` leads to, with its user, password and TLS; everything else as by default.
    ///
    /// The locks have connections of their own, made with the options that the pool has at that time
    /// ([`sqlx::Pool::set_connect_options`]). What its hooks do to connections is not done.
    #[must_use]
    pub fn of_pool(pool: MySqlPool) -> Self {
        let options = pool.connect_options();
        let host = options.get_socket().map_or(options.get_host().into(), |path| path.to_string_lossy());
        let hosts = vec![Host::new(host, options.get_port())];
        let database = options.get_database().unwrap_or_default().to_owned();
        Self { hosts, database, pool: Some(Given::new(pool)), ..Self::default() }
    }

    /// Reads a URL, whose common options have been taken out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig), saying what is wrong.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS, onelock_core::config::OPTIONS])?;
        let mut config = Self { hosts: url.hosts_or(PORT), ..Self::default() };
        config.database = url.path.strip_prefix('/').unwrap_or_default().to_owned();
        config.username = url.username.take().unwrap_or_default();
        config.password = url.password.take();
        config = config.merge_url(&mut url)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig), saying what is wrong.
    pub fn check(&self) -> Result<()> {
        let plain = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
        self.endpoints().check(&Self::default().hosts)?;
        let elsewhere = self.pool.is_some() || self.credentials.is_some();
        if !elsewhere && !plain(&self.username) {
            return Err(bad("the MySQL store needs a user: mysql://user:password@host/database"));
        }
        if !plain(&self.database) || self.database.contains('/') {
            return Err(bad("the MySQL store needs a database: mysql://user:password@host/database"));
        }
        if !is_plain(&self.namespace, 48) {
            return Err(bad(
                "namespace is 1 to 48 of lower-case ASCII letters, digits and `_`, the first no digit",
            ));
        }
        if !(1..=100).contains(&self.connections) {
            return Err(bad("connections is from 1 to 100"));
        }
        checks::times(&[self.connect_timeout, self.request_timeout])?;
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&self.poll) {
            return Err(bad("poll is from 1ms to 1s"));
        }
        let files = self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_key.is_some();
        if files && !self.tls.is_demanded() {
            return Err(bad("tls_ca, tls_cert and tls_key need tls=require, verify-ca or verify-full"));
        }
        if self.tls_ca.is_some() && self.tls == Tls::Require {
            return Err(bad("tls=require looks at no certificate: with tls_ca use verify-ca or verify-full"));
        }
        checks::pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        self.tls.check("MySQL")
    }

    pub(super) fn endpoints(&self) -> Endpoints<'_> {
        Endpoints {
            hosts: &self.hosts,
            socket: self.socket.as_ref().map(|path| Host::new(path.to_string_lossy(), 0)),
            user: Some(&*self.username).filter(|user| !user.is_empty()),
            password: self.password.as_ref(),
            credentials: self.credentials.as_ref(),
            pooled: self.pool.is_some(),
            connect_timeout: self.connect_timeout,
        }
    }

    /// What the driver takes. Its `Debug` shows the password.
    pub(super) fn options(
        &self,
        server: &Host,
        user: Option<&str>,
        password: Option<&Secret>,
    ) -> MySqlConnectOptions {
        // The session is set up in one request of ours, and no statement is logged: they hold holder ids.
        let bare = |options: MySqlConnectOptions| {
            let options = options.pipes_as_concat(false).no_engine_substitution(false);
            options.timezone(None).set_names(false).disable_statement_logging()
        };
        if let Some(pool) = &self.pool {
            // Verbs are prepared once per connection, whatever the application's connections keep.
            let options = MySqlConnectOptions::clone(&pool.get().connect_options());
            return bare(options.statement_cache_capacity(100));
        }
        let mut options =
            bare(MySqlConnectOptions::new()).database(&self.database).ssl_mode(match self.tls {
                Tls::Off => MySqlSslMode::Disabled,
                Tls::Prefer => MySqlSslMode::Preferred,
                Tls::Require => MySqlSslMode::Required,
                Tls::VerifyCa => MySqlSslMode::VerifyCa,
                Tls::VerifyFull => MySqlSslMode::VerifyIdentity,
            });
        options = if server.is_socket() {
            options.socket(&server.host)
        } else {
            options.host(&server.host).port(server.port)
        };
        if let Some(user) = user {
            options = options.username(user);
        }
        if let Some(password) = password {
            options = options.password(password.reveal());
        }
        if let Some(file) = &self.tls_ca {
            options = options.ssl_ca(file);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            options = options.ssl_client_cert(cert).ssl_client_key(key);
        }
        options
    }

    /// The address without scheme, user, password and options.
    pub(crate) fn address(&self) -> String {
        self.endpoints().address(&self.database)
    }
}

#[cfg(test)]
mod tests {
    use onelock_core::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<MySqlConfig> {
        MySqlConfig::from_url(url.parse()?)
    }

    #[test]
    fn a_url_is_read() {
        let config = read(
            "mariadb://us%40er:p%3Aw@h:3307/app?namespace=l_&pool=3&poll=2ms&request_timeout=1s\
             &connect_timeout=2s&tls=verify-full&tls_ca=/ca.pem",
        )
        .unwrap();
        assert_eq!((&config.hosts[..], config.connections), (&[Host::new("h", 3307)][..], 3));
        assert_eq!((config.username.as_str(), config.database.as_str()), ("us@er", "app"));
        assert_eq!(config.password.as_ref().unwrap().reveal(), "p:w");
        assert_eq!((config.tls, config.namespace.as_str()), (Tls::VerifyFull, "l_"));
        assert_eq!(config.address(), "h:3307/app");
        let local = read("mysql://u@/app?socket=/run/mysqld/mysqld.sock").unwrap();
        assert_eq!(local.address(), "/run/mysqld/mysqld.sock/app");
        assert_eq!(read("mysql://u@a,b:7/app").unwrap().address(), "a:3306,b:7/app");
        let old = read("mysql://u@h/app?table_prefix=a_&pool=3").unwrap();
        assert_eq!(read("mysql://u@h/app?namespace=a_&connections=3").unwrap(), old);
        assert!(!format!("{config:?} {}", config.address()).contains("p:w"));
    }

    #[test]
    fn what_cannot_work_is_refused_before_any_request() {
        for url in [
            "mysql://h/app",
            "mysql://u@h",
            "mysql://u@h/",
            "mysql://u@h/a/b",
            "mysql://u@/app",
            "mysql://u@h/app?socket=/run/mysqld/mysqld.sock",
            "mysql://u@/app?socket=mysqld.sock",
            "mysql://u@h/app?pool=0",
            "mysql://u@h/app?pool=101",
            "mysql://u@h/app?poll=0s",
            "mysql://u@h/app?poll=2s",
            "mysql://u@h/app?request_timeout=0s",
            "mysql://u@h/app?connect_timeout=1h",
            "mysql://u@h/app?table_prefix=a%60b",
            "mysql://u@h/app?namespace=",
            "mysql://u@h/app?namespace=a&table_prefix=a",
            "mysql://u@h/app?table_prefix=1a",
            "mysql://u@h/app?table_prefix=Aa",
            "mysql://u@h/app?tls=maybe",
            "mysql://u@h/app?tls_ca=/ca.pem",
            "mysql://u@h/app?tls=require&tls_ca=/ca.pem",
            "mysql://u@h/app?tls=require&tls_cert=/c.pem",
            "mysql://u@h/app?tsl=off",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        let text = read("mysql://u@h/app?tsl=off").unwrap_err().to_string();
        assert!(text.contains("`tsl`") && text.contains("namespace"), "{text}");
    }

    #[test]
    fn a_config_survives_serde_without_its_password_and_refuses_the_unknown() {
        let mut config = MySqlConfig::new("h", "u", "app");
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<MySqlConfig>(&json).unwrap(), config);
        config.password = Some(Secret::new("hunter2"));
        assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
        let read: MySqlConfig =
            serde_json::from_str(r#"{"password": "hunter2", "tls": "verify-ca"}"#).unwrap();
        assert_eq!((read.password.unwrap().reveal(), read.tls), ("hunter2", Tls::VerifyCa));
        let error = serde_json::from_str::<MySqlConfig>(r#"{"hots": "h"}"#).unwrap_err();
        assert!(error.to_string().contains("hots"), "{error}");
    }
}
