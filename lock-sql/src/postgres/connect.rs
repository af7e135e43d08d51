//! Where the next connection leads and with which credentials: found out for each anew.

use onelock_core::Host;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use super::config::PostgresConfig;
use crate::hosts::{ours, primary};
use crate::unharmed::unharmed;

/// Whether it may keep locks.
const PRIMARY: &str = "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'";

/// Makes connections.
#[derive(Debug)]
pub(crate) struct Connector {
    config: PostgresConfig,
    hosts: Vec<Host>,
}

impl Connector {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        Self { hosts: config.servers(), config: config.clone() }
    }

    /// What the driver takes, for the server that takes writes. Its `Debug` shows the password.
    pub(crate) async fn options(&self) -> Result<PgConnectOptions, sqlx::Error> {
        let mut options = self.config.options();
        if let Some(callback) = &self.config.credentials {
            // A part of the time for connecting, so that the error is the callback's.
            let given = callback.get(self.config.connect_timeout / 2).await;
            let (user, password) = given.map_err(ours)?;
            options = options.username(&user);
            if !password.reveal().is_empty() {
                options = options.password(password.reveal());
            }
        }
        if self.hosts.len() < 2 {
            return Ok(options);
        }
        let at = |host: &Host| options.clone().host(&host.host).port(host.port);
        let probe = |host| {
            let options = at(host);
            async move { options.connect().await?.fetch_one(sqlx::raw_sql(PRIMARY)).await?.try_get(0) }
        };
        primary(&self.hosts, self.config.connect_timeout / 4, probe).await.map(at)
    }

    /// A connection in which nothing is set yet, within the time for connecting.
    pub(crate) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let connecting = async { self.options().await?.connect().await };
        // Nothing was asked yet.
        let late = |_| {
            let text = "the server could not be reached in time";
            Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
        };
        tokio::time::timeout(self.config.connect_timeout, unharmed(connecting)).await.unwrap_or_else(late)
    }
}
