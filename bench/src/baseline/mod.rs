//! What each store's driver does without this library: the two bare requests that take a free lock and give it back, and one
//! that asks for nothing. Nobody waits, renews, numbers or repeats anything.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zk")]
mod zk;

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use crate::data::Kind;
use crate::networked::{Connector, Networked};
use crate::plain::{self, Plain};
use crate::servers::Running;
use crate::subject::{Client, Failure, Lock, LockSpec, Subject};

/// The baselines of a server.
#[must_use]
pub fn of(server: &Running) -> Vec<Arc<dyn Subject>> {
    match server.store {
        #[cfg(feature = "etcd")]
        "etcd" => vec![baseline(server, "etcd", etcd::DRIVER, etcd::EtcdPair)],
        #[cfg(feature = "mysql")]
        "mysql" => vec![
            baseline(server, "mysql", sql::DRIVER, sql::Rows(mysql::Server)),
            baseline(server, "mysql+session", sql::DRIVER, sql::Sessions(mysql::Server)),
        ],
        #[cfg(feature = "mysql")]
        crate::servers::MYSQL_RELAXED => {
            vec![baseline(server, server.store, sql::DRIVER, sql::Rows(mysql::Server))]
        }
        #[cfg(feature = "postgres")]
        "postgres" => vec![
            baseline(server, "postgres", sql::DRIVER, sql::Rows(postgres::Server { durable: true })),
            baseline(server, "postgres relaxed", sql::DRIVER, sql::Rows(postgres::Server { durable: false })),
            baseline(
                server,
                "postgres+session",
                sql::DRIVER,
                sql::Sessions(postgres::Server { durable: true }),
            ),
        ],
        #[cfg(feature = "redis")]
        "redis" => vec![baseline(server, "redis", redis::DRIVER, redis::RedisPair)],
        #[cfg(feature = "zk")]
        "zk" => vec![baseline(server, "zk", zk::DRIVER, zk::Nodes)],
        _ => Vec::new(),
    }
}

#[allow(dead_code, reason = "not in a build without servers")]
fn baseline<W: Connector + 'static>(server: &Running, store: &str, driver: &str, way: W) -> Arc<dyn Subject> {
    Arc::new(Networked::new(Kind::Baseline, &format!("{store} baseline"), store, driver, server, way))
}

/// Two bare requests, by one client for all names.
trait Pair: Clone + Send + Sync + 'static {
    /// What the second request needs from the answer to the first.
    type Kept: Send + Sync + 'static;

    /// Takes the lock if it is free.
    fn take(&self, name: &str) -> impl Future<Output = Result<Option<Self::Kept>, Failure>> + Send;

    /// Gives it back; whether it was held until then.
    fn give_back(&self, name: &str, kept: Self::Kept) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// The least that the server answers; false where there is no server.
    fn ping(&self) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Ends the client.
    fn close(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

struct PairOfName<P>(P, String);

impl<P: Pair> Plain for PairOfName<P> {
    type Kept = P::Kept;

    async fn take(&self, _: bool) -> Result<Option<P::Kept>, Failure> {
        self.0.take(&self.1).await
    }

    async fn give_back(&self, kept: P::Kept) -> Result<(), Failure> {
        if self.0.give_back(&self.1, kept).await? {
            Ok(())
        } else {
            Err("the lock was not held any more".into())
        }
    }
}

#[allow(dead_code, reason = "not in a build without stores")]
struct Requests<P>(P);

#[async_trait]
impl<P: Pair> Client for Requests<P> {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        Ok(plain::lock(PairOfName(self.0.clone(), ask.name.to_owned())))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.ping().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await
    }
}

#[allow(dead_code, reason = "not in a build without stores")]
fn client(pair: impl Pair) -> Arc<dyn Client> {
    Arc::new(Requests(pair))
}
