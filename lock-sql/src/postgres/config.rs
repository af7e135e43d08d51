//! How to reach a server and where in it the tables are, from a URL or a serde struct.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::driver::opening;
use onelock_core::toolkit::options;
use onelock_core::url::host_port;
use onelock_core::{Capabilities, Driver, Error, ErrorKind, Result, Secret, StoreUrl};
use serde::{Deserialize, Serialize};
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::PostgresBackend;
use crate::Durability;

/// The PostgreSQL store: `postgres://user:password@host:5432/database`.
pub const POSTGRES_DRIVER: Driver = Driver::new("postgres", &["postgres", "postgresql"], |url, _| {
    opening(async move { PostgresBackend::open(PostgresConfig::from_url(url)?).await })
})
.example("postgres://app:password@db.internal/app")
.about("tables and functions in a PostgreSQL database")
.capabilities(Capabilities::of_lines())
.options(PostgresConfig::OPTIONS);

/// How a connection is secured: as libpq's `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SslMode {
    /// Never with TLS.
    Disable,
    /// With TLS where the server offers it. Anyone in between can turn it off.
    #[default]
    Prefer,
    /// With TLS, whatever server it is.
    Require,
    /// With TLS, and a certificate of a trusted authority.
    VerifyCa,
    /// With TLS, and a certificate of a trusted authority for this very host.
    VerifyFull,
}

options! {
    /// How to reach one PostgreSQL server. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct PostgresConfig {
        /// A host name or an address (IPv6 without brackets).
        pub host: String = "127.0.0.1".into(),
        /// The port.
        pub port: u16 = 5432,
        /// The database; the user's name when there is none.
        pub database: Option<String> = None,
        /// The user; what `PGUSER` or the operating system says when there is none.
        pub username: Option<String> = None,
        /// The password. It is read by serde and never written.
        pub password: Option<Secret> = None,
    }
    options {
        /// The schema of the tables and functions.
        ///
        /// A letter or `_`, then letters, digits and `_`, at most 63.
        #[alias = "schema"]
        namespace: String = "onelock",
        /// Make the tables and functions when they are missing.
        ///
        /// Without it somebody else does, with what [`super::migration`] gives.
        migrate: bool = "true",
        /// Whether joins and renewals wait for the disk: durable or relaxed.
        durability: Durability = "durable",
        /// How many connections at most serve the verbs.
        ///
        /// One more renews when all are busy, and one more listens.
        connections: u16 = "4",
        /// How long reaching the server may take.
        connect_timeout: Duration = "5s",
        /// How long the server may take to answer.
        ///
        /// A connection that does not answer is replaced.
        request_timeout: Duration = "5s",
        /// How a connection is secured: disable, prefer, require, verify-ca or verify-full.
        sslmode: SslMode = "prefer",
        /// A PEM file with the authorities to trust.
        #[alias = "sslrootcert"]
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        #[alias = "sslcert"]
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        #[alias = "sslkey"]
        tls_key: Option<PathBuf> = "none",
    }
}

impl PostgresConfig {
    /// The server at `host` and `port`, everything else as by default.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, ..Self::default() }
    }

    /// Reads a URL, whose common options have been taken out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn from_url(url: StoreUrl) -> Result<Self> {
        Self::default().over(url)
    }

    /// What the URL says, over these defaults.
    pub(crate) fn over(mut self, mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS])?;
        let (host, port) = url.single_host()?;
        (self.host, self.port) = (host.to_owned(), port.unwrap_or(self.port));
        let database = url.path.trim_start_matches('/');
        if database.contains('/') {
            return Err(bad("the path of a PostgreSQL URL is one database name"));
        }
        self.database = (!database.is_empty()).then(|| database.to_owned());
        self.username = url.username.take();
        self.password = url.password.take();
        let config = self.merge_url(&mut url)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], saying what is wrong.
    pub fn check(&self) -> Result<()> {
        check_schema(&self.namespace)?;
        if self.host.is_empty() || self.host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(bad("the host is malformed"));
        }
        if self.port == 0 {
            return Err(bad("the port is a number from 1 to 65535"));
        }
        if !(1..=64).contains(&self.connections) {
            return Err(bad("connections is from 1 to 64"));
        }
        let times = Duration::from_millis(1)..=Duration::from_secs(600);
        if !times.contains(&self.connect_timeout) || !times.contains(&self.request_timeout) {
            return Err(bad("connect_timeout and request_timeout are from 1ms to 10m"));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(bad("tls_cert and tls_key go together"));
        }
        crate::tls::check("PostgreSQL", !matches!(self.sslmode, SslMode::Disable | SslMode::Prefer))
    }

    /// The address without user, password and options.
    pub(super) fn address(&self) -> String {
        let database = self.database.as_deref().unwrap_or_default();
        format!("postgres://{}/{database}", host_port(&self.host, Some(self.port)))
    }

    /// What the driver takes. Its `Debug` shows the password: never print it.
    pub(crate) fn options(&self) -> PgConnectOptions {
        let mut options = PgConnectOptions::new_without_pgpass()
            .host(&self.host)
            .port(self.port)
            .application_name("onelock")
            // Poolers refuse it, and no number here has a fraction.
            .extra_float_digits(None)
            .ssl_mode(match self.sslmode {
                SslMode::Disable => PgSslMode::Disable,
                SslMode::Prefer => PgSslMode::Prefer,
                SslMode::Require => PgSslMode::Require,
                SslMode::VerifyCa => PgSslMode::VerifyCa,
                SslMode::VerifyFull => PgSslMode::VerifyFull,
            })
            .disable_statement_logging();
        if let Some(username) = &self.username {
            options = options.username(username);
        }
        if let Some(password) = &self.password {
            options = options.password(password.reveal());
        }
        if let Some(database) = &self.database {
            options = options.database(database);
        }
        if let Some(file) = &self.tls_ca {
            options = options.ssl_root_cert(file);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            options = options.ssl_client_cert(cert).ssl_client_key(key);
        }
        options
    }
}

/// The schema goes into the text of statements, so it is a plain identifier and nothing else.
pub(crate) fn check_schema(schema: &str) -> Result<()> {
    let ok = (1..=63).contains(&schema.len())
        && schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !schema.starts_with("pg_");
    if ok {
        Ok(())
    } else {
        Err(bad("namespace is a schema: 1 to 63 of a-z, 0-9 and `_`, not with a digit or `pg_` first"))
    }
}

fn bad(text: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<PostgresConfig> {
        PostgresConfig::from_url(url.parse()?)
    }

    #[test]
    fn a_url_says_it_all_and_shows_no_password() {
        let config = read(
            "postgres://us:hunter2@h:7/db?namespace=a_1&connections=2&sslmode=verify-full&migrate=false",
        )
        .unwrap();
        assert_eq!((config.host.as_str(), config.port, config.connections), ("h", 7, 2));
        assert_eq!(
            (config.namespace.as_str(), config.sslmode, config.migrate),
            ("a_1", SslMode::VerifyFull, false)
        );
        assert_eq!(config.address(), "postgres://h:7/db");
        assert_eq!(config.durability, Durability::Durable);
        let libpq = read("postgres://h?schema=a&sslrootcert=/ca&sslcert=/c&sslkey=/k").unwrap();
        assert_eq!(read("postgres://h?namespace=a&tls_ca=/ca&tls_cert=/c&tls_key=/k").unwrap(), libpq);
        assert_eq!(read("postgres://h?durability=relaxed").unwrap().durability, Durability::Relaxed);
        let json = serde_json::to_string(&config).unwrap();
        assert!(!format!("{config:?}{json}").contains("hunter2"));
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in [
            "postgres://",
            "postgres://a,b/db",
            "postgres://h/a/b",
            "postgres://h/db?schema=a.b",
            "postgres://h/db?schema=%22x",
            "postgres://h/db?schema=1a",
            "postgres://h/db?schema=pg_x",
            "postgres://h/db?namespace=",
            "postgres://h/db?namespace=a&schema=a",
            "postgres://h/db?durability=off",
            "postgres://h/db?connections=0",
            "postgres://h/db?sslmode=maybe",
            "postgres://h/db?sslcert=x",
            "postgres://h/db?request_timeout=0s",
            "postgres://h/db?shema=x",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
