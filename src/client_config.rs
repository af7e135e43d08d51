//! What a client is made from.

use std::fmt;
use std::sync::Arc;

#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    all(feature = "sqlite", unix),
    feature = "zk"
))]
use onelock_core::driver::opening;
use onelock_core::driver::{Context, Opening};
use onelock_core::{BootClock, Error, ErrorKind, Locks, Result, Settings, StoreUrl};
use serde::{Deserialize, Serialize};

/// A client's configuration, for serde. Options in the URL override `settings`.
///
/// ```
/// let config: onelock::Config = serde_json::from_str(r#"{ "url": "memory://", "settings": { "ttl": "15s" } }"#)?;
/// assert_eq!(config.settings.ttl.as_secs(), 15);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// It is made from the configuration of a store too, and from a pool or client that the application has; see
/// [`connect_with`](crate::connect_with).
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The store. It is not looked at where the configuration was made from that of a store.
    pub url: String,
    /// What every lock starts from.
    #[serde(default)]
    pub settings: Settings,
    #[serde(skip)]
    pub(crate) store: Option<Store>,
}

impl Config {
    /// The default settings on the store that `url` names.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), settings: Settings::default(), store: None }
    }

    /// The same with these settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }
}

/// Shows neither the password nor the options of the URL.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.parse::<StoreUrl>().map_or_else(|_| "(malformed)".to_owned(), |url| url.address());
        f.debug_struct("Config").field("url", &url).field("settings", &self.settings).finish()
    }
}

impl From<&Config> for Config {
    fn from(config: &Config) -> Self {
        config.clone()
    }
}

/// Opens a store that no URL names.
#[derive(Clone)]
pub(crate) struct Store(Arc<dyn Fn(Context) -> Opening + Send + Sync>);

impl Store {
    pub(crate) async fn locks(self, settings: Settings) -> Result<Locks> {
        if settings.lazy {
            let text = "`lazy` needs a URL: the configuration of a store is connected to at once";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let clock = Arc::new(BootClock);
        let backend = (self.0)(Context::new(clock)).await?;
        Locks::builder(backend).settings(settings).build()
    }
}

/// How what is not a URL becomes a backend.
macro_rules! stores {
    ($($(#[$attr:meta])* $from:ty, $address:literal, |$config:pat_param, $context:pat_param| $opening:expr;)*) => {$(
        $(#[$attr])*
        impl From<$from> for Config {
            fn from(config: $from) -> Self {
                let open = move |$context: Context| {
                    let $config = config.clone();
                    $opening
                };
                Self { store: Some(Store(Arc::new(open))), ..Self::new($address) }
            }
        }
    )*};
}

stores! {
    #[cfg(feature = "redis")]
    onelock_redis::RedisConfig, "redis://", |config, _| onelock_redis::open(config);
    #[cfg(feature = "redis")]
    onelock_redis::redis::Client, "redis://", |client, _| {
        onelock_redis::open(onelock_redis::RedisConfig::of_client(client))
    };
    #[cfg(feature = "etcd")]
    onelock_etcd::EtcdConfig, "etcd://", |config, context| {
        opening(onelock_etcd::EtcdBackend::connect_on(config, context.clock))
    };
    #[cfg(feature = "etcd")]
    onelock_etcd::etcd_client::Client, "etcd://", |client, context| {
        opening(onelock_etcd::EtcdBackend::connect_on(onelock_etcd::EtcdConfig::of_client(client), context.clock))
    };
    #[cfg(feature = "postgres")]
    onelock_sql::PostgresConfig, "postgres://", |config, _| opening(onelock_sql::PostgresBackend::open(config));
    #[cfg(feature = "postgres")]
    onelock_sql::sqlx::PgPool, "postgres://", |pool, _| {
        opening(onelock_sql::PostgresBackend::open(onelock_sql::PostgresConfig::of_pool(pool)))
    };
    #[cfg(feature = "mysql")]
    onelock_sql::MySqlConfig, "mysql://", |config, _| opening(onelock_sql::MySqlBackend::connect(config));
    #[cfg(feature = "mysql")]
    onelock_sql::sqlx::MySqlPool, "mysql://", |pool, _| {
        opening(onelock_sql::MySqlBackend::connect(onelock_sql::MySqlConfig::of_pool(pool)))
    };
    #[cfg(all(feature = "sqlite", unix))]
    onelock_sql::SqliteConfig, "sqlite://", |config, context| {
        opening(onelock_sql::SqliteBackend::open(config, context.clock))
    };
    #[cfg(feature = "zk")]
    onelock_zk::ZkConfig, "zk://", |config, context| opening(onelock_zk::ZkBackend::connect(config, context.clock));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_shows_no_secret() {
        let shown = format!("{:?}", Config::new("redis://u:hunter2@h?password=hunter2"));
        assert!(shown.contains("redis://h") && !shown.contains("hunter2"), "{shown}");
    }
}
