//! Where the next connection leads and with which credentials: found out for each anew.

use onelock_core::Host;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _, MySqlConnection, Row as _};

use super::config::MySqlConfig;
use crate::hosts::{ours, primary};

/// Whether it may keep locks.
const PRIMARY: &str = "SELECT NOT @@GLOBAL.read_only";

/// Makes connections.
#[derive(Debug)]
pub(crate) struct Connector {
    config: MySqlConfig,
    hosts: Vec<Host>,
}

impl Connector {
    pub(crate) fn new(config: &MySqlConfig) -> Self {
        Self { hosts: config.servers(), config: config.clone() }
    }

    /// A connection in which nothing is set yet, to the server that takes writes.
    pub(crate) async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
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
            return options.connect().await;
        }
        let at = |host: &Host| -> MySqlConnectOptions { options.clone().host(&host.host).port(host.port) };
        let probe = |host| {
            let options = at(host);
            async move {
                let row = options.connect().await?.fetch_one(sqlx::raw_sql(PRIMARY)).await?;
                row.try_get::<i64, _>(0).map(|writable| writable != 0)
            }
        };
        at(primary(&self.hosts, self.config.connect_timeout / 4, probe).await?).connect().await
    }
}
