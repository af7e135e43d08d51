//! How to reach a server and where in it the tables are, from a URL or a serde struct.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::toolkit::{Given, checks, options};
use onelock_core::{Credentials, Host, Result, Secret, StoreUrl};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions as _, PgPool};

use crate::hosts::{Endpoints, bad, is_plain};
use crate::{Durability, Tls};

options! {
    /// How to reach one PostgreSQL server. Its `Debug` shows no password.
    #[derive(Eq)]
    pub struct PostgresConfig {
        /// The server; or a primary and its standbys, of which the one that takes writes is used.
        pub hosts: Vec<Host> = vec![Host::new("127.0.0.1", PORT)],
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
        sslmode: Tls = "prefer",
        /// A PEM file with the authorities to trust.
        #[alias = "sslrootcert"]
        tls_ca: Option<PathBuf> = "the system's",
        /// A PEM file with the client's certificate.
        #[alias = "sslcert"]
        tls_cert: Option<PathBuf> = "none",
        /// A PEM file with the client's key.
        #[alias = "sslkey"]
        tls_key: Option<PathBuf> = "none",
        /// The folder of the server's Unix socket, instead of a host.
        #[alias = "host"]
        socket: Option<PathBuf> = "none",
        /// The port in the name of the socket.
        port: u16 = "5432",
    }
    skip {
        /// Asked for the user and the password of each new connection, instead of those above.
        pub credentials: Option<Credentials>,
        pub(crate) pool: Option<Given<PgPool>>,
    }
}

const PORT: u16 = 5432;

impl PostgresConfig {
    /// The server at `host` and `port`, everything else as by default.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { hosts: vec![Host::new(host, port)], ..Self::default() }
    }

    /// The server and the database that `pool` leads to, with its user, password and TLS; everything else as by default.
    ///
    /// The locks have connections of their own, made with the options that the pool has at that time
    /// ([`sqlx::Pool::set_connect_options`]). What its hooks do to connections is not done.
    #[must_use]
    pub fn of_pool(pool: PgPool) -> Self {
        let options = pool.connect_options();
        let host = options.get_socket().map_or(options.get_host().into(), |path| path.to_string_lossy());
        let hosts = vec![Host::new(host, options.get_port())];
        let database = options.get_database().map(str::to_owned);
        Self { hosts, database, pool: Some(Given::new(pool)), ..Self::default() }
    }

    /// Reads a URL, whose common options have been taken out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig), saying what is wrong.
    pub fn from_url(url: StoreUrl) -> Result<Self> {
        Self::default().over(url)
    }

    /// What the URL says, over these defaults.
    pub(crate) fn over(mut self, mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS])?;
        self.hosts = url.hosts_or(PORT);
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
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig), saying what is wrong.
    pub fn check(&self) -> Result<()> {
        check_schema(&self.namespace)?;
        if self.port == 0 {
            return Err(bad("the port is a number from 1 to 65535"));
        }
        self.endpoints().check(&Self::default().hosts)?;
        if !(1..=64).contains(&self.connections) {
            return Err(bad("connections is from 1 to 64"));
        }
        checks::times(&[self.connect_timeout, self.request_timeout])?;
        checks::pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        self.sslmode.check("PostgreSQL")
    }

    pub(super) fn endpoints(&self) -> Endpoints<'_> {
        Endpoints {
            hosts: &self.hosts,
            socket: self.socket.as_ref().map(|path| Host::new(path.to_string_lossy(), self.port)),
            user: self.username.as_deref(),
            password: self.password.as_ref(),
            credentials: self.credentials.as_ref(),
            pooled: self.pool.is_some(),
            connect_timeout: self.connect_timeout,
        }
    }

    /// The address without scheme, user, password and options.
    pub(crate) fn address(&self) -> String {
        self.endpoints().address(self.database.as_deref().unwrap_or_default())
    }

    /// What the driver takes. Its `Debug` shows the password: never print it.
    pub(super) fn options(
        &self,
        server: &Host,
        user: Option<&str>,
        password: Option<&Secret>,
    ) -> PgConnectOptions {
        // Poolers refuse the digits, and no number here has a fraction.
        let bare = |options: PgConnectOptions| options.extra_float_digits(None).disable_statement_logging();
        if let Some(pool) = &self.pool {
            // Verbs are prepared once per connection, whatever the application's connections keep.
            let options = PgConnectOptions::clone(&pool.get().connect_options());
            return bare(options.statement_cache_capacity(100));
        }
        let mut options = bare(PgConnectOptions::new_without_pgpass())
            .host(&server.host)
            .port(server.port)
            .application_name("onelock")
            .ssl_mode(match self.sslmode {
                Tls::Off => PgSslMode::Disable,
                Tls::Prefer => PgSslMode::Prefer,
                Tls::Require => PgSslMode::Require,
                Tls::VerifyCa => PgSslMode::VerifyCa,
                Tls::VerifyFull => PgSslMode::VerifyFull,
            });
        if let Some(user) = user {
            options = options.username(user);
        }
        if let Some(password) = password {
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
    if is_plain(schema, 63) && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(bad("namespace is a schema: 1 to 63 of a-z, 0-9 and `_`, not with a digit or `pg_` first"))
}

#[cfg(test)]
mod tests {
    use onelock_core::ErrorKind;

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
        assert_eq!((&config.hosts[..], config.connections), (&[Host::new("h", 7)][..], 2));
        assert_eq!(
            (config.namespace.as_str(), config.sslmode, config.migrate),
            ("a_1", Tls::VerifyFull, false)
        );
        assert_eq!(config.address(), "h:7/db");
        let local = read("postgres:///db?host=/run/postgresql&port=5433").unwrap();
        assert_eq!(local.endpoints().socket, Some(Host::new("/run/postgresql", 5433)));
        assert_eq!(local.address(), "/run/postgresql/db");
        assert_eq!(read("postgres://a,b:7/db").unwrap().address(), "a:5432,b:7/db");
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
            "postgres://h/db?host=/run/postgresql",
            "postgres:///db?host=h",
            "postgres:///db?host=/run&port=0",
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
