//! Where the next connection leads and with which credentials: found out for each anew.

use onelock_core::Host;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, MySqlConnection, Row as _};

use super::config::MySqlConfig;
use crate::hosts::{given, primary};

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
        let (callback, limit) = (self.config.credentials.as_ref(), self.config.connect_timeout);
        if let Some((user, password)) = given(callback, limit).await? {
            options = options.username(&user);
            if let Some(password) = password {
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
                let mut conn = options.connect().await?;
                let row = conn.fetch_one(sqlx::raw_sql(PRIMARY)).await?;
                // Only so that the server need not find out.
                let _ = conn.close().await;
                row.try_get::<i64, _>(0).map(|writable| writable != 0)
            }
        };
        at(primary(&self.hosts, self.config.connect_timeout / 4, probe).await?).connect().await
    }
}
