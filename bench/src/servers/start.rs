//! How each server is started, which URLs lead to it, and how much it says that it was asked. What asks for a count is not
//! in it.

use std::any::Any;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
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
use crate::subject::Failure;

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
    if onelock::drivers().iter().any(|driver| driver.schemes.contains(&session.as_str())) {
        urls.push((session.clone(), url(&session)));
    }
    urls
}

/// A server that runs, with a `count` of its requests. That is given the server, and how often it was asked for so far.
fn running<S: Any + Send + Sync, F: Future<Output = Verdict<u64>> + Send + 'static>(
    store: &'static str,
    address: SocketAddr,
    version: String,
    server: S,
    count: fn(Arc<S>, u64) -> F,
) -> Running {
    let (server, asked) = (Arc::new(server), AtomicU64::new(0));
    let counted = Arc::clone(&server);
    let counter = Arc::new(move || -> BoxFuture<'static, Result<u64, Failure>> {
        let count = count(Arc::clone(&counted), asked.fetch_add(1, Ordering::SeqCst) + 1);
        Box::pin(async { count.await.map_err(|stop| stop.to_string().into()) })
    });
    Running { store, address, version, counter, _server: server }
}

/// Commands that scripts of locks are made of: the server does not tell them from those of clients, so they are not counted.
const IN_SCRIPTS: &str = "time exists get del incr ttl pttl expire pexpire pexpireat pexpiretime persist hget hset hdel hlen hmget \
    zadd zrem zcard zscore zrange zrank zrangebyscore zremrangebyscore publish unlink type hexists zcount";

/// It counts commands of clients.
async fn redis() -> Verdict<Running> {
    async fn info(server: &RedisServer, section: &str) -> Verdict<String> {
        Ok(Resp::connect(server.address()).await?.call(&["INFO", section]).await?.concat())
    }
    // As it comes, but for its snapshots: one in the middle of a sample would be charged to whoever is measured then.
    let lines = vec!["appendonly no".to_owned()];
    let server = RedisServer::start(RedisSetup { lines, ..RedisSetup::default() }).await?;
    let says = info(&server, "server").await?;
    let version = says.lines().find_map(|line| line.strip_prefix("redis_version:")).context("a version")?;
    let version = format!("redis {}", version.trim());
    Ok(running("redis", server.address(), version, server, |server, _| async move {
        let calls = |line: &str| {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let ours = command == "info" || IN_SCRIPTS.split_whitespace().any(|known| known == command);
            if ours { None } else { rest.split(',').next()?.parse::<u64>().ok() }
        };
        Ok(info(&server, "commandstats").await?.lines().filter_map(calls).sum())
    }))
}

/// It counts messages of clients, those of streams included.
async fn etcd() -> Verdict<Running> {
    let compact = ["--auto-compaction-mode=periodic", "--auto-compaction-retention=10s"].map(str::to_owned);
    let server = Member::with(Place::Disk, None, &compact).await?;
    let metrics = server.metrics().await?;
    let version = |name: &str| {
        name.strip_prefix("etcd_server_version{server_version=\"")?.split('"').next().map(str::to_owned)
    };
    let version = metrics.iter().find_map(|(name, _)| version(name)).context("a version")?;
    Ok(running("etcd", server.address(), format!("etcd {version}"), server, |server, _| async move {
        Ok(server.received().await?.into_iter().map(|(_, count)| count).sum())
    }))
}

/// It counts packets of clients, pings and questions like this included.
async fn zookeeper() -> Verdict<Running> {
    let server = ZkServer::start(ZkSetup { place: Place::Disk, ..ZkSetup::default() }).await?;
    let says = server.word("srvr").await?;
    let version = says.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    let version = format!("ZooKeeper {}", version.context("a version")?);
    Ok(running("zk", server.address(), version, server, |server, asked| async move {
        let said = server.word("mntr").await?;
        let line = said.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        let count: u64 = line.context("a count of packets")?.trim().parse()?;
        Ok(count.saturating_sub(asked))
    }))
}

/// It counts statements that were executed in the database of the locks.
async fn postgres() -> Verdict<Running> {
    let settings =
        ["log_statement=none", "max_connections=1000", "shared_preload_libraries=pg_stat_statements"];
    let server = PostgresServer::start_in(Place::Disk, &settings).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    server.say("CREATE EXTENSION pg_stat_statements").await?;
    let version = server.say("SHOW server_version").await?;
    let version = format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default());
    Ok(running("postgres", address, version, server, |server, _| async move {
        let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
                   WHERE query NOT LIKE '%pg_stat_statements%'";
        Ok(server.say(sql).await?.parse()?)
    }))
}

/// `flush`: 1 for a server whose commits wait for its disk, 2 for one that flushes once a second. It counts requests of
/// clients, questions like this included.
async fn mysql(store: &'static str, flush: &str) -> Verdict<Running> {
    let flush = format!("--innodb-flush-log-at-trx-commit={flush}");
    let server = MariaDb::start_in(Place::Disk, &["--max-connections=1000", &flush]).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    let version = server.say("SELECT VERSION()").await?;
    let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    let version = format!("{name} {}", version.split('-').next().unwrap_or_default());
    Ok(running(store, address, version, server, |server, asked| async move {
        let row = server.say("SHOW GLOBAL STATUS LIKE 'Questions'").await?;
        let count: u64 = row.split_once('\t').context("a count")?.1.parse()?;
        // The end of a session counts as well.
        Ok(count.saturating_sub(2 * asked))
    }))
}
