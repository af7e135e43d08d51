//! What each store's driver does without this library: the same requests, sent one after the other to take a free lock and
//! to give it back, one request that asks for nothing, and the least it takes to wait for one's turn. Nobody renews or checks anything, and nobody is told again after a failure.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_session;
#[cfg(feature = "mysql")]
mod mysql_text;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_session;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod told;
#[cfg(feature = "zk")]
mod zk;

use std::sync::Arc;

use crate::data::Kind;
use crate::networked::{Networked, Way};
use crate::servers::Running;
use crate::subject::{Need, Subject};

/// The floors of a server.
#[must_use]
pub fn of(server: &Running) -> Vec<Arc<dyn Subject>> {
    match server.store {
        #[cfg(feature = "etcd")]
        "etcd" => vec![floor(server, "etcd", etcd::DRIVER, etcd::Floor)],
        #[cfg(feature = "mysql")]
        "mysql" => vec![
            floor(server, "mysql", pool::DRIVER, mysql::Floor),
            floor(server, "mysql+session", pool::DRIVER, mysql_session::Floor),
        ],
        #[cfg(feature = "mysql")]
        crate::servers::MYSQL_RELAXED => {
            let way = mysql::Floor;
            vec![floor(server, crate::servers::MYSQL_RELAXED, pool::DRIVER, way)]
        }
        #[cfg(feature = "postgres")]
        "postgres" => vec![
            floor(server, "postgres", pool::DRIVER, postgres::Floor { durable: true }),
            floor(server, "postgres relaxed", pool::DRIVER, postgres::Floor { durable: false }),
            floor(server, "postgres+session", pool::DRIVER, postgres_session::Floor),
        ],
        #[cfg(feature = "redis")]
        "redis" => vec![floor(server, "redis", redis::DRIVER, redis::Floor)],
        #[cfg(feature = "zk")]
        "zk" => vec![floor(server, "zk", zk::DRIVER, zk::Floor)],
        _ => Vec::new(),
    }
}

#[allow(dead_code, reason = "not in a build without servers")]
fn floor<W: Way + 'static>(server: &Running, store: &str, driver: &str, way: W) -> Arc<dyn Subject> {
    Arc::new(Networked::new(Kind::Floor, &format!("{store} floor"), store, driver, server, way))
}

/// What a floor cannot do.
#[allow(dead_code, reason = "not in a build without servers")]
fn lacks_waiting(need: Need) -> Option<String> {
    let can = matches!(need, Need::Try | Need::Wait | Need::Ping);
    (!can).then(|| "the driver alone takes locks, waits for them and gives them back".to_owned())
}
