//! Where the next connection leads and with which credentials: found out for each anew.

use onelock_core::Host;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::config::PostgresConfig;
use crate::hosts::{given, in_time, primary};

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
        let (callback, limit) = (self.config.credentials.as_ref(), self.config.connect_timeout);
        if let Some((user, password)) = given(callback, limit).await? {
            options = options.username(&user);
            if let Some(password) = password {
                options = options.password(password.reveal());
            }
        }
        if self.hosts.len() < 2 {
            return Ok(options);
        }
        let at = |host: &Host| options.clone().host(&host.host).port(host.port);
        let probe = |host| {
            let options = at(host);
            async move {
                let mut conn = options.connect().await?;
                let answer = conn.fetch_one(sqlx::raw_sql(PRIMARY)).await?.try_get(0);
                // Only so that the server need not find out.
                let _ = conn.close().await;
                answer
            }
        };
        primary(&self.hosts, self.config.connect_timeout / 4, probe).await.map(at)
    }

    /// A connection in which nothing is set yet, within the time for connecting.
    pub(crate) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let connecting = async { self.options().await?.connect().await };
        in_time(self.config.connect_timeout, connecting).await
    }
}
