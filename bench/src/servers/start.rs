//! How each server is started, and which URLs lead to it.

use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use onelock_testbed::Stop;
use onelock_testbed::servers::Place;
use onelock_testbed::servers::etcd::Member;
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use onelock_testbed::servers::redis::{RedisServer, Setup as RedisSetup};
use onelock_testbed::servers::resp::Resp;
use onelock_testbed::servers::zookeeper::{Setup as ZkSetup, TICK, ZkServer};
use onelock_testbed::verdict::{Context as _, Verdict};

use super::Running;
use super::count;
use crate::subject::Counter;

/// The stores that need a server, and whether this build has them.
pub(super) const STORES: [(&str, bool); 6] = [
    ("redis", cfg!(feature = "redis")),
    ("etcd", cfg!(feature = "etcd")),
    ("zk", cfg!(feature = "zk")),
    ("postgres", cfg!(feature = "postgres")),
    ("mysql", cfg!(feature = "mysql")),
    (MYSQL_RELAXED, cfg!(feature = "mysql")),
];

/// There the server decides what waits for the disk, not the client: a server of its own.
pub(crate) const MYSQL_RELAXED: &str = "mysql relaxed";

/// Starts the server of a store.
pub(super) async fn start(store: &'static str) -> Verdict<Running> {
    match store {
        "redis" => redis().await,
        "etcd" => etcd().await,
        "zk" => zookeeper().await,
        "postgres" => postgres().await,
        "mysql" => mysql("mysql", "1").await,
        MYSQL_RELAXED => mysql(MYSQL_RELAXED, "2").await,
        other => Err(Stop::failed(format!("nobody knows how to start {other}"))),
    }
}

/// What the subjects of a server are called, and their URLs.
pub(super) fn urls(server: &Running) -> Vec<(String, String)> {
    let (store, at) = (server.store, server.address);
    let url = |scheme: &str| match store {
        "zk" => format!("zk://{at}/bench?tick={}ms", TICK.as_millis()),
        "postgres" => format!("{scheme}://postgres@{at}/postgres?sslmode=disable"),
        "mysql" | MYSQL_RELAXED => format!("{scheme}://root@{at}/locks?tls=off"),
        _ => format!("{scheme}://{at}"),
    };
    if store == MYSQL_RELAXED {
        return vec![(store.to_owned(), format!("{}&durability=relaxed", url("mysql")))];
    }
    let mut urls = vec![(store.to_owned(), url(store))];
    let drivers = onelock::drivers();
    // One key per lock and no line, as other libraries have it.
    if store == "redis" {
        urls.push((format!("{store} plain"), format!("{}?layout=plain", url(store))));
    }
    // A line that does not wait for the disk.
    if store == "postgres" {
        urls.push((format!("{store} relaxed"), format!("{}&durability=relaxed", url(store))));
    }
    // The server's own queue.
    let session = format!("{store}+session");
    if drivers.iter().any(|driver| driver.schemes.contains(&session.as_str())) {
        urls.push((session.clone(), url(&session)));
    }
    urls
}

fn running(
    store: &'static str,
    address: SocketAddr,
    version: String,
    counter: Option<Arc<dyn Counter>>,
    server: impl Any + Send + Sync,
) -> Running {
    Running { store, address, version, counter, _server: Box::new(server) }
}

async fn redis() -> Verdict<Running> {
    // As it comes, but for its snapshots: one in the middle of a sample would be charged to whoever is measured then.
    let lines = vec!["appendonly no".to_owned()];
    let server = RedisServer::start(RedisSetup { lines, ..RedisSetup::default() }).await?;
    let info = Resp::connect(server.address()).await?.call(&["INFO", "server"]).await?.texts().concat();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).context("a version")?;
    let version = format!("redis {}", version.trim());
    let counter = Some(Arc::new(count::Redis(server.address())) as Arc<dyn Counter>);
    Ok(running("redis", server.address(), version, counter, server))
}

async fn etcd() -> Verdict<Running> {
    let compact = ["--auto-compaction-mode=periodic", "--auto-compaction-retention=10s"].map(str::to_owned);
    let server = Arc::new(Member::in_place(Place::Disk, &compact).await?);
    let metrics = server.metrics().await?;
    let version = |name: &str| {
        name.strip_prefix("etcd_server_version{server_version=\"")?.split('"').next().map(str::to_owned)
    };
    let version = metrics.iter().find_map(|(name, _)| version(name)).context("a version")?;
    let counter = Some(Arc::new(count::Etcd(Arc::clone(&server))) as Arc<dyn Counter>);
    Ok(running("etcd", server.address(), format!("etcd {version}"), counter, server))
}

async fn zookeeper() -> Verdict<Running> {
    let server = Arc::new(ZkServer::start(ZkSetup { place: Place::Disk, ..ZkSetup::default() }).await?);
    let says = server.word("srvr").await?;
    let version = says.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    let version = format!("ZooKeeper {}", version.context("a version")?);
    let counter = Some(Arc::new(count::ZooKeeper::new(Arc::clone(&server))) as Arc<dyn Counter>);
    Ok(running("zk", server.address(), version, counter, server))
}

async fn postgres() -> Verdict<Running> {
    let settings =
        ["log_statement=none", "max_connections=1000", "shared_preload_libraries=pg_stat_statements"];
    let server = Arc::new(PostgresServer::start_on_disk(&settings).await?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    let mut admin = server.look().await?;
    admin.query("CREATE EXTENSION pg_stat_statements").await?;
    let version = count::first(&admin.query("SHOW server_version").await?)?;
    let version = version.split(' ').next().unwrap_or_default();
    let counter = Some(Arc::new(count::Postgres(Arc::clone(&server))) as Arc<dyn Counter>);
    Ok(running("postgres", address, format!("PostgreSQL {version}"), counter, server))
}

/// `flush`: 1 for a server whose commits wait for its disk, 2 for one that flushes once a second.
async fn mysql(store: &'static str, flush: &str) -> Verdict<Running> {
    let flush = format!("--innodb-flush-log-at-trx-commit={flush}");
    let settings = ["--max-connections=1000", &flush];
    let server = Arc::new(MariaDb::start_in_place(Place::Disk, &settings).await?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    let version = count::first(&server.look().await?.query("SELECT VERSION()").await?)?;
    let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    let version = format!("{name} {}", version.split('-').next().unwrap_or_default());
    let counter = Some(Arc::new(count::MySql::new(Arc::clone(&server))) as Arc<dyn Counter>);
    Ok(running(store, address, version, counter, server))
}
