//! The application's own pools, clients and credentials.

use onelock::{Config, Credentials, ErrorKind, Locks, Secret, StoreUrl};

use crate::{Done, PATIENCE, check, expect};

/// Each of these clients excludes the one that was connected by URL.
pub async fn by_what_the_application_has(locks: &Locks, url: &str, name: &str) -> Done {
    let parsed: StoreUrl = url.parse()?;
    let (host, port) = parsed.hosts.first().cloned().unwrap_or_default();
    let port = port.unwrap_or_default();
    let user = parsed.username.clone().unwrap_or_default();
    let credentials = Credentials::new(move || {
        let user = user.clone();
        async move { Ok::<_, std::io::Error>((user, Secret::new(""))) }
    });
    let (of_pool, by_callback): (Config, Config) = match locks.info().scheme.as_str() {
        "redis" => {
            let config = onelock::redis::RedisConfig::new(host, port);
            (redis::Client::open(url)?.into(), config.into())
        }
        "postgres" => {
            let mut config = onelock::sql::PostgresConfig::new(host, port);
            config.database = Some(parsed.path.trim_start_matches('/').to_owned());
            config.credentials = Some(credentials);
            (sqlx::PgPool::connect_lazy(url)?.into(), config.into())
        }
        "mysql" => {
            let mut config = onelock::sql::MySqlConfig::new(host, "", parsed.path.trim_start_matches('/'));
            config.hosts[0].port = port;
            config.credentials = Some(credentials);
            (sqlx::MySqlPool::connect_lazy(url)?.into(), config.into())
        }
        "etcd" => {
            let client = etcd_client::Client::connect([format!("{host}:{port}")], None).await?;
            (client.into(), onelock::etcd::EtcdConfig::new([(host, port)]).into())
        }
        _ => return Ok(()),
    };
    for config in [of_pool, by_callback.settings(locks.settings().clone())] {
        let other = onelock::connect_with(config.clone()).await?;
        let guard = locks.mutex(name)?.acquire().await?;
        check(other.mutex(name)?.try_acquire().await?.is_none(), "it is the same lock")?;
        guard.release().await?;
        other.mutex(name)?.acquire().await?.release().await?;
        other.close(PATIENCE).await?;
        let mut lazy = config;
        lazy.settings.lazy = true;
        expect(onelock::connect_with(lazy).await, ErrorKind::Unsupported)?;
    }
    Ok(())
}
