//! A store URL as a configuration.

use onelock_core::{Error, Host, Result, StoreUrl};

use super::{Layout, RedisConfig, Topology, bad};

/// Where sentinels listen when the URL does not say.
const SENTINEL_PORT: u16 = 26379;
const PORT: u16 = 6379;

impl TryFrom<StoreUrl> for RedisConfig {
    type Error = Error;

    /// Reads `redis://user:password@host:port/database?option=value`, `redis+unix://user:password@/path/of/socket?db=1`,
    /// `redis+sentinel://host,host/master-name/database` and `redis+cluster://host,host`; `rediss…` is the same over TLS.
    fn try_from(mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS, onelock_core::config::OPTIONS])?;
        let (scheme, path) = (url.scheme.clone(), url.path.trim_matches('/').to_owned());
        let (base, kind) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let (topology, database, port) = match (base, kind) {
            ("redis" | "rediss", "sentinel") => {
                let (master, database) = path.split_once('/').unwrap_or((&path, ""));
                (Topology::Sentinel { master: master.to_owned() }, database, SENTINEL_PORT)
            }
            ("redis" | "rediss", "cluster") => (Topology::Cluster, &*path, PORT),
            ("redis" | "rediss", "") => (Topology::Single, &*path, PORT),
            ("redis", "unix") if !url.hosts.is_empty() || path.is_empty() => {
                return Err(bad("a Unix socket has a path and no host: redis+unix:///run/redis/redis.sock"));
            }
            ("redis", "unix") => (Topology::Single, "", PORT),
            _ => {
                let text = "is not a scheme of Redis; those are redis, redis+unix, redis+sentinel, redis+cluster, and rediss… for TLS";
                return Err(bad(format!("`{scheme}` {text}")));
            }
        };
        let mut config = Self { tls: base == "rediss", topology, ..Self::default() };
        if !database.is_empty() {
            let number =
                database.bytes().all(|b| b.is_ascii_digit()).then(|| database.parse().ok()).flatten();
            let bad = || bad("the path of a Redis URL ends with the number of a database");
            config.database = number.ok_or_else(bad)?;
        }
        config.hosts = url.hosts_or(port);
        if config.hosts.is_empty() {
            config.hosts.push(if kind == "unix" {
                Host::new(&*url.path, 0)
            } else {
                Host::new("127.0.0.1", port)
            });
        }
        config.username = url.username.take();
        config.password = url.password.take();
        let given = |url: &StoreUrl, names: &[&str]| url.option_names().any(|name| names.contains(&name));
        let (named, timed) = (given(&url, &["namespace", "prefix"]), given(&url, &["replicas_timeout"]));
        if !database.is_empty() && given(&url, &["database", "db"]) {
            return Err(bad("the database is given twice: at the end of the path and as an option"));
        }
        config = config.merge_url(&mut url)?;
        if config.layout == Layout::Plain && !named {
            // Others write the bare name.
            config.namespace.clear();
        }
        if !timed {
            config.replicas_timeout = config.replicas_timeout.min(config.request_timeout / 2);
        }
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onelock_core::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<RedisConfig> {
        RedisConfig::try_from(url.parse::<StoreUrl>().unwrap())
    }

    #[test]
    fn a_full_url_is_read() {
        let config = read(
            "rediss://app:p%40ss@db.example:7000/3?namespace=shop&request_timeout=700ms&tls_ca=/ca.pem&ttl=15s",
        )
        .unwrap();
        assert_eq!((&config.hosts[..], config.database), (&[Host::new("db.example", 7000)][..], 3));
        assert_eq!(config.topology, Topology::Single);
        assert_eq!(config.username.as_deref(), Some("app"));
        assert_eq!(config.password.as_ref().unwrap().reveal(), "p@ss");
        assert!(config.tls && !config.tls_insecure);
        assert_eq!(config.tls_ca.as_deref(), Some("/ca.pem".as_ref()));
        assert_eq!(config.request_timeout, Duration::from_millis(700));
        assert_eq!(config.address(), "rediss://db.example:7000/3");
        assert_eq!(read("redis://").unwrap(), RedisConfig::default());
        assert_eq!(read("redis://h?prefix=shop").unwrap().namespace, "shop");
        assert_eq!(read("redis://[::1]/").unwrap().address(), "redis://[::1]:6379/0");
    }

    #[test]
    fn sentinels_and_clusters_are_read() {
        let config =
            read("redis+sentinel://app:secret@h1:7,[::1],h3/locks/2?sentinel_username=w&sentinel_password=x")
                .unwrap();
        assert_eq!(config.topology, Topology::Sentinel { master: "locks".into() });
        assert_eq!(config.hosts, [Host::new("h1", 7), Host::new("::1", 26379), Host::new("h3", 26379)]);
        assert_eq!((config.database, config.sentinel_username.as_deref()), (2, Some("w")));
        assert_eq!(config.address(), "redis+sentinel://h1:7,[::1]:26379,h3:26379/locks/2");
        assert!(!format!("{config:?}").contains("secret"));
        let config = read("rediss+cluster://h1,h2:7?replicas=2&request_timeout=600ms").unwrap();
        assert_eq!((config.topology.clone(), config.tls, config.replicas), (Topology::Cluster, true, 2));
        assert_eq!(config.address(), "rediss+cluster://h1:6379,h2:7");
        assert!(config.replicas_timeout < config.request_timeout);
        let config = read("redis://h?layout=plain").unwrap();
        assert_eq!((config.layout, config.namespace.as_str()), (Layout::Plain, ""));
    }

    #[test]
    fn what_cannot_work_is_refused_before_any_connection() {
        for url in [
            "redis://h/x",
            "redis://h/-1",
            "redis://h/+1",
            "redis://h/1/2",
            "redis://a,b",
            "redis://user@h",
            "redis://h?namespace=",
            "redis://h?namespace=a&prefix=a",
            "redis://h?prefix=a{b}",
            "redis://h?prefix=a*",
            "redis://h?tls_ca=/x",
            "rediss://h?tls_cert=/x",
            "redis://h?request_timeout=0s",
            "redis://h?connect_timeout=1h",
            "redis://h?tls_insecure=maybe",
            "redis+sentinel://h",
            "redis+sentinel://h/name/x",
            "redis+sentinel://h/name?sentinel_username=u",
            "redis+cluster://h/1",
            "redis+cluster://h?sentinel_password=p",
            "redis+other://h",
            "redis://h?layout=other",
            "redis://h?gate=other",
            "redis://h?gate=run_id&layout=plain",
            "redis+cluster://h?gate=run_id",
            "redis+cluster://h?never_promoted=true",
            "redis+sentinel://h/name?never_promoted=true",
            "redis+sentinel://h/name?gate=run_id",
            "redis://h?replicas=-1",
            "redis://h?replicas=65",
            "redis://h?replicas=1&replicas_timeout=3s",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        let text = read("redis://h?prefx=a").unwrap_err().to_string();
        assert!(text.contains("`prefx`") && text.contains("namespace") && text.contains("ttl"), "{text}");
    }
}
