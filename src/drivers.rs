//! The list of stores: one line each.

use std::sync::Arc;

use onelock_core::driver::opening;
use onelock_core::{
    BootClock, Clock, Driver, Error, ErrorKind, Result, StoreUrl, TokioClock, memory, quorum,
};

/// A store this project knows, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, as in [`Driver::name`].
    pub name: &'static str,
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// The cargo feature that compiles it in; `None` for what is always there.
    pub feature: Option<&'static str>,
}

const FAMILIES: &[Family] = &[
    Family { name: "memory", schemes: &["memory"], feature: None },
    Family { name: "sqlite", schemes: &["sqlite"], feature: Some("sqlite") },
    Family { name: "redis", schemes: &["redis", "rediss", "redis+unix"], feature: Some("redis") },
    Family {
        name: "redis-sentinel",
        schemes: &["redis+sentinel", "rediss+sentinel"],
        feature: Some("redis"),
    },
    Family { name: "redis-cluster", schemes: &["redis+cluster", "rediss+cluster"], feature: Some("redis") },
    Family { name: "etcd", schemes: &["etcd", "etcds"], feature: Some("etcd") },
    Family { name: "postgres", schemes: &["postgres", "postgresql"], feature: Some("postgres") },
    Family {
        name: "postgres-session",
        schemes: &["postgres+session", "postgresql+session"],
        feature: Some("postgres"),
    },
    Family { name: "mysql", schemes: &["mysql", "mariadb"], feature: Some("mysql") },
    Family { name: "mysql-session", schemes: &["mysql+session", "mariadb+session"], feature: Some("mysql") },
    Family { name: "quorum", schemes: &["quorum"], feature: None },
    Family { name: "zookeeper", schemes: &["zk", "zookeeper", "zks"], feature: Some("zk") },
];

/// Every store this project knows.
#[must_use]
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// A majority of several stores.
pub(crate) const QUORUM: Driver = Driver::new("quorum", &["quorum"], |url, context| {
    opening(async move { quorum::open(url, &members(), GATES, context).await })
})
.example("quorum://?members=redis://a|redis://b|redis://c")
.about("a majority of several independent stores, of any kinds: Redlock, fenced")
.capabilities(quorum::CAPABILITIES)
.options(quorum::OPTIONS);

/// What keeps a member of a quorum from voting after a restart, by the name of its driver.
pub(crate) const GATES: &[(&str, quorum::GateOf)] = &[
    #[cfg(feature = "redis")]
    ("redis", onelock_redis::RedisGate::of_url),
];

/// The stores compiled into this build.
#[must_use]
pub fn drivers() -> Vec<Driver> {
    let mut all = members();
    all.push(QUORUM);
    all
}

/// What can be a member of a quorum.
pub(crate) fn members() -> Vec<Driver> {
    vec![
        memory::DRIVER,
        #[cfg(all(feature = "sqlite", unix))]
        onelock_sql::SQLITE_DRIVER,
        #[cfg(feature = "redis")]
        onelock_redis::DRIVER,
        #[cfg(feature = "redis")]
        onelock_redis::SENTINEL_DRIVER,
        #[cfg(feature = "redis")]
        onelock_redis::CLUSTER_DRIVER,
        #[cfg(feature = "etcd")]
        onelock_etcd::DRIVER,
        #[cfg(feature = "postgres")]
        onelock_sql::POSTGRES_DRIVER,
        #[cfg(feature = "postgres")]
        onelock_sql::POSTGRES_SESSION_DRIVER,
        #[cfg(feature = "mysql")]
        onelock_sql::MYSQL_DRIVER,
        #[cfg(feature = "mysql")]
        onelock_sql::MYSQL_SESSION_DRIVER,
        #[cfg(feature = "zk")]
        onelock_zk::DRIVER,
    ]
}

/// The clock of a client: boot time. For stores inside this process it is tokio's in a runtime that is paused, or the
/// client's timers and its deadlines would run apart.
pub(crate) fn clock(url: &StoreUrl) -> Arc<dyn Clock> {
    match TokioClock::paused() {
        Some(paused) if in_process(url) => Arc::new(paused),
        _ => Arc::new(BootClock),
    }
}

fn in_process(url: &StoreUrl) -> bool {
    let memory = |scheme: &str| memory::DRIVER.schemes.contains(&scheme);
    let members = url.clone().take::<String>("members").ok().flatten();
    memory(&url.scheme)
        || members.is_some_and(|members| {
            members.split('|').all(|member| member.parse::<StoreUrl>().is_ok_and(|url| memory(&url.scheme)))
        })
}

/// Says which feature is missing when a store is known but not compiled in, also as a member of a quorum.
pub(crate) fn check_compiled(url: &StoreUrl) -> Result<()> {
    compiled(url, None)?;
    if url.scheme == QUORUM.name {
        let members: Option<String> = url.clone().take("members").ok().flatten();
        for (nth, member) in members.iter().flat_map(|members| members.split('|')).enumerate() {
            // A malformed URL is an error when it is opened.
            if let Ok(member) = member.parse::<StoreUrl>() {
                compiled(&member, Some(nth + 1))?;
            }
        }
    }
    Ok(())
}

fn compiled(url: &StoreUrl, member: Option<usize>) -> Result<()> {
    let family = FAMILIES.iter().find(|family| family.schemes.contains(&url.scheme.as_str()));
    let Some(Family { name, feature, .. }) = family else { return Ok(()) };
    if drivers().iter().any(|driver| driver.name == *name) {
        return Ok(());
    }
    let of = member.map(|nth| format!("member {nth}: ")).unwrap_or_default();
    if cfg!(not(unix)) && *name == "sqlite" {
        let text =
            format!("{of}the store `sqlite` needs a Unix, whose processes share locks and times of a file");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Err(Error::not_compiled(format_args!("{of}the store `{name}`"), feature.as_slice()))
}
