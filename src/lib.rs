//! One distributed-lock API, any store.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # async fn charge(_token: onelock::FencingToken) -> Result<&'static str, std::io::Error> { Ok("paid") }
//! let locks = onelock::connect("memory://?ttl=15s").await?;
//! let guard = locks.mutex("orders/42")?.acquire().await?;
//! let receipt = guard.run(charge(guard.token()?)).await??; // stopped before the lease can run out
//! guard.release().await?; // or drop: released in the background
//! # assert_eq!(receipt, "paid");
//! # Ok(())
//! # }
//! ```
//!
//! The store is chosen by URL, and compiled in by cargo feature. The memory store is always there.
//!
//! | feature | URL |
//! |---|---|
//! | (none) | `memory://` |
//! | `sqlite` | `sqlite:///var/lib/app/locks.db` |
//! | `redis` | `redis://host:6379`, `rediss://…`, `redis+sentinel://host,host/master`, `redis+cluster://host,host` |
//! | `etcd` | `etcd://host:2379,host:2379`, `etcds://…`; building it needs `protoc` |
//! | `mysql` | `mysql://user:password@host/database`, `mariadb://…` |
//! | `mysql` | `mysql+session://…`: `GET_LOCK`, fast, with fewer promises |
//! | `postgres` | `postgres://user:password@host/database` |
//! | `postgres` | `postgres+session://…`: advisory locks, fast, with fewer promises |
//! | `zk` | `zk://host:2181,host:2181/chroot`, `zks://…` |
//! | (none) | `quorum://?members=url\|url\|url`: a majority of several of the others |
//! | `tls-ring` or `tls-aws-lc` | TLS to Redis, etcd, PostgreSQL and MySQL, by this provider of cryptography |
//! | `tls` | TLS to Redis and etcd, by the provider that the application has installed |
//! | `zk-tls` | TLS to ZooKeeper, by the provider that the application has installed |
//! | `metrics`, `tracing` | what a client does, as metrics and as spans: [their names and labels](onelock_core::around::observer) |
//! | `tower` | the layer that refuses requests with stale tokens, in [`fence`] |
//!
//! # What may change
//!
//! Items at the root follow semantic versioning: within 0.x a minor version may change them, a patch version does not.
//! [`store`] and [`toolkit`] are for authors of a store, and may change in every minor version.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod client_config;
mod drivers;
pub mod fence;
pub mod guide;

#[doc(inline)]
pub use onelock_core::testing;
#[doc(inline)]
pub use onelock_core::{
    Acquire, BootClock, Builder, Capabilities, Clock, Credentials, Driver, Election, EntryView, Error,
    ErrorKind, Event, FencingToken, ForeignView, Guard, GuardSet, HandOver, Health, HolderId, Host, Info,
    Leader, ListedName, Listing, Lock, LockName, LockSet, Locks, LossReason, MemoryBackend, MemoryStore,
    Mode, Note, Observe, Observer, OptionSpec, Owner, Page, Position, Quorum, Release, Result, Retry, RwLock,
    Secret, Settings, Snapshot, Stop, StoreUrl, Term, Timestamp, TokenEpoch, TokioClock,
};
/// For authors of a store; and the modules that its items are in.
pub use onelock_core::{backend, clock, config, driver, lease, name, quorum, store, toolkit, url};

pub use client_config::Config;
pub use drivers::{Family, drivers, families};

#[cfg(feature = "etcd")]
pub use onelock_etcd as etcd;
#[cfg(feature = "redis")]
pub use onelock_redis as redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use onelock_sql as sql;
#[cfg(feature = "zk")]
pub use onelock_zk as zk;

/// A client by URL: `scheme://[user:password@]host[:port][/path][?option=value&…]`. `/`, `?`, `#`, `@` and `%` in a user, a
/// password, a path or an option are percent-encoded.
///
/// Deadlines run on boot time; those of `memory://` on tokio's time where the runtime is paused, as in a test.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for an unknown scheme, a store that is not compiled in, or an unknown option, before
/// any I/O. [`ErrorKind::Misuse`] outside a Tokio runtime. Any error of opening the store.
///
/// # Cancel safety
/// Safe: a store that was half opened is closed.
pub async fn connect(url: &str) -> Result<Locks> {
    connect_with(Config::new(url)).await
}

/// A client by configuration: a [`Config`], the configuration of a store, or a pool or client that the application has.
///
/// The locks have connections of their own, made as those of the pool or client are: a renewal that waited for the
/// application's queries would come too late. Where a pool's options change, with a rotated password, so do theirs. Where a
/// callback knows the password, it is part of the configuration of the store:
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// use onelock::{Config, Credentials, Secret, sql::PostgresConfig};
///
/// # async fn from_the_vault() -> Result<String, std::io::Error> { Ok("secret".into()) }
/// let mut store = PostgresConfig::new("db.internal", 5432);
/// store.credentials = Some(Credentials::new(|| async {
///     Ok::<_, std::io::Error>(("app".into(), Secret::new(from_the_vault().await?)))
/// }));
/// let mut config = Config::from(store); // for `connect_with`
/// config.settings.ttl = std::time::Duration::from_secs(15);
/// # }
/// ```
///
/// ```no_run
/// # #[cfg(feature = "redis")]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # use onelock::redis::redis;
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let locks = onelock::connect_with(client).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_with(config: impl Into<Config>) -> Result<Locks> {
    let Config { url, settings, store } = config.into();
    if let Some(store) = store {
        return store.locks(settings).await;
    }
    let parsed: StoreUrl = url.parse()?;
    drivers::check_compiled(&parsed)?;
    Locks::open(&url, &drivers(), settings, drivers::clock(&parsed)).await
}

/// The quorum that a `quorum:` URL names, for what only a quorum has: [gates](quorum#gates). For locks, [`connect`].
///
/// # Errors
/// As [`connect`]; and [`ErrorKind::InvalidConfig`] when the URL is not that of a quorum.
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_quorum(url: &str) -> Result<Quorum> {
    let mut url: StoreUrl = url.parse()?;
    if url.scheme != drivers::QUORUM.name {
        let text = format!("`{}:` is not a quorum: quorum://?members=url|url|url", url.scheme);
        return Err(Error::new(ErrorKind::InvalidConfig, text));
    }
    drivers::check_compiled(&url)?;
    url.check_options(&[config::OPTIONS, quorum::OPTIONS])?;
    Settings::default().merge_url(&mut url)?;
    let context = driver::Context::new(drivers::clock(&url));
    quorum::open(url, &drivers::members(), drivers::GATES, context).await
}

/// The program of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let error = connect("riddle://h").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("memory"), "{error}");
        let error = connect("memory://?tll=1s").await.unwrap_err();
        assert!(error.to_string().contains("ttl"), "{error}");
    }

    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn a_missing_feature_is_named() {
        let error = connect("redis://u:hunter2@h").await.unwrap_err().to_string();
        assert!(error.contains("feature `redis`") && !error.contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_quorum_is_a_url_too() {
        let locks = connect("quorum://?members=memory://a|memory://b|memory://c&ttl=5s").await.unwrap();
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        let first = guard.token().unwrap();
        assert!(locks.mutex("n").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        assert!(guard.token().unwrap() > first);
        for (bad, wanted) in [
            ("quorum://", "`members`"),
            ("quorum://host?members=memory://a|memory://b", "no host"),
            ("quorum://?members=memory://a", "2 to 15"),
            ("quorum://?members=memory://a|memory://a", "twice"),
            ("quorum://?members=memory://a|riddle://b", "member 2"),
            ("quorum://?members=memory://a|memory://b?ttl=1s", "member 2"),
            ("quorum://?members=memory://a|quorum://?members=x", "member 2"),
        ] {
            let error = connect(bad).await.unwrap_err();
            assert!(error.to_string().contains(wanted), "{bad}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_passes_for_stores_in_this_process() {
        for url in ["memory://?ttl=1s", "quorum://?members=memory://x|memory://y|memory://z&ttl=1s"] {
            let locks = connect(url).await.unwrap();
            let began = tokio::time::Instant::now();
            let guard = locks.mutex("n").unwrap().auto_renew(false).acquire().await.unwrap();
            assert_eq!(guard.lost().await, LossReason::Expired);
            let passed = began.elapsed().as_secs_f32();
            assert!(passed < 2.0, "{url}: a lease of 1 s ended after {passed} s of the runtime's time");
        }
        let paused = connect("memory://one-clock").await.unwrap();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        connect("memory://one-clock").await.unwrap();
        let drivers = drivers();
        let boot = std::sync::Arc::new(BootClock);
        let other = Locks::open("memory://one-clock", &drivers, Settings::default(), boot);
        assert_eq!(other.await.unwrap_err().kind(), ErrorKind::Misuse);
        drop(paused);
    }

    #[test]
    fn schemes_are_unique() {
        let mut schemes: Vec<_> = families().iter().flat_map(|f| f.schemes).collect();
        let count = schemes.len();
        schemes.sort_unstable();
        schemes.dedup();
        assert_eq!(schemes.len(), count);
        for driver in drivers() {
            assert!(
                families().iter().any(|f| f.name == driver.name && f.schemes == driver.schemes),
                "{}",
                driver.name
            );
        }
    }
}
