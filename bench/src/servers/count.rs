//! What each server says about how much it was asked. Every count is asked for by a connection of its own, and leaves out
//! what asked for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use onelock_testbed::servers::etcd::Member;
use onelock_testbed::servers::mariadb::MariaDb;
use onelock_testbed::servers::postgres::PostgresServer;
use onelock_testbed::servers::resp::Resp;
use onelock_testbed::servers::zookeeper::ZkServer;
use onelock_testbed::verdict::{Context as _, Verdict};

use crate::subject::{Counter, Failure};

fn told(count: Verdict<u64>) -> Result<u64, Failure> {
    count.map_err(|stop| stop.to_string().into())
}

/// The first field of an answer.
pub(super) fn first(rows: &[Vec<Option<String>>]) -> Verdict<String> {
    rows.first().and_then(|row| row.first().cloned().flatten()).context("an answer")
}

/// Commands of clients. The server does not tell them from those that scripts call, so what scripts of locks are made of
/// is not counted.
pub(super) struct Redis(pub(super) SocketAddr);

const IN_SCRIPTS: &str = "time exists get del incr ttl pttl expire pexpire pexpireat pexpiretime persist hget hset hdel hlen hmget \
    zadd zrem zcard zscore zrange zrank zrangebyscore zremrangebyscore publish unlink type hexists zcount";

#[async_trait]
impl Counter for Redis {
    async fn served(&self) -> Result<u64, Failure> {
        let count = async {
            let said = Resp::connect(self.0).await?.call(&["INFO", "commandstats"]).await?.texts().concat();
            let calls = |line: &str| {
                let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let ours = command == "info" || IN_SCRIPTS.split_whitespace().any(|known| known == command);
                if ours { None } else { rest.split(',').next()?.parse::<u64>().ok() }
            };
            Ok(said.lines().filter_map(calls).sum())
        };
        told(count.await)
    }
}

/// Messages of clients, those of streams included.
pub(super) struct Etcd(pub(super) Arc<Member>);

#[async_trait]
impl Counter for Etcd {
    async fn served(&self) -> Result<u64, Failure> {
        told(self.0.received().await.map(|counts| counts.into_iter().map(|(_, count)| count).sum()))
    }
}

/// Packets of clients, pings included.
pub(super) struct ZooKeeper {
    server: Arc<ZkServer>,
    asked: AtomicU64,
}

impl ZooKeeper {
    pub(super) fn new(server: Arc<ZkServer>) -> Self {
        Self { server, asked: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Counter for ZooKeeper {
    async fn served(&self) -> Result<u64, Failure> {
        let count = async {
            // The question is a packet, too.
            let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            let said = self.server.word("mntr").await?;
            let line = said.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
            let count: u64 = line.context("a count of packets")?.trim().parse()?;
            Ok(count.saturating_sub(asked))
        };
        told(count.await)
    }
}

/// Statements that were executed in the database of the locks.
pub(super) struct Postgres(pub(super) Arc<PostgresServer>);

#[async_trait]
impl Counter for Postgres {
    async fn served(&self) -> Result<u64, Failure> {
        let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
                   WHERE query NOT LIKE '%pg_stat_statements%'";
        told(async { Ok(first(&self.0.look().await?.query(sql).await?)?.parse()?) }.await)
    }
}

/// Requests of clients.
pub(super) struct MySql {
    server: Arc<MariaDb>,
    asked: AtomicU64,
}

impl MySql {
    pub(super) fn new(server: Arc<MariaDb>) -> Self {
        Self { server, asked: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Counter for MySql {
    async fn served(&self) -> Result<u64, Failure> {
        let count = async {
            // The question is one, too.
            let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            let rows = self.server.look().await?.query("SHOW GLOBAL STATUS LIKE 'Questions'").await?;
            let count: u64 = rows.first().and_then(|row| row.get(1)?.clone()).context("a count")?.parse()?;
            Ok(count.saturating_sub(asked))
        };
        told(count.await)
    }
}
