//! The servers that this machine has, started for a run, with all that can be put to work on them.
//!
//! Each has the durability that it comes with, and its data on the disk of the folder for temporary files, so that a commit
//! costs what it does: etcd, ZooKeeper, PostgreSQL and MariaDB wait for the disk at every commit, SQLite does, and Redis
//! keeps no log of its writes. What differs from a server as it is installed:
//!
//! | server | setting | why |
//! |---|---|---|
//! | PostgreSQL | `pg_stat_statements` | it counts requests at once; the other counts come seconds late |
//! | PostgreSQL, MariaDB | more connections | some peers have one for each waiter |
//! | etcd | compacts what is older than ten seconds | as the manual of the store asks for: by itself it keeps all there ever was |
//! | MariaDB, a second one | flushes once a second | `durability=relaxed` is the server's choice there |
//! | ZooKeeper | a tick of 200 ms | leases may be short |

mod start;

#[cfg(feature = "mysql")]
pub(crate) use start::MYSQL_RELAXED;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::baseline;
use crate::ours::Ours;
use crate::subject::{Counter, Failure, Subject};

/// A server that was started for this process.
pub struct Running {
    /// What it serves: the first scheme of its URLs, or the name of a set-up of its own.
    pub store: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its name and version.
    pub version: String,
    /// How many requests it got.
    pub counter: Counter,
    /// It ends when this goes.
    _server: Arc<dyn Any + Send + Sync>,
}

/// All that is there. Servers end when it is dropped.
pub struct Fleet {
    /// What can be measured: the stores, and the drivers of each without this library.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// The servers, for other ways to lock on them.
    pub servers: Vec<Running>,
    /// What there is not, and why.
    pub left_out: Vec<String>,
}

/// Starts every server that this build has a store for and this machine has installed. One that does not start is left out,
/// and said to be.
///
/// # Errors
/// When the URL of a store is refused: it is one of ours, so that is a fault of this library.
///
/// # Cancel safety
/// Safe: what was started ends.
pub async fn all() -> Result<Fleet, Failure> {
    let mut fleet = Fleet { subjects: Vec::new(), servers: Vec::new(), left_out: Vec::new() };
    fleet.subjects.push(Arc::new(Ours::new(None, "memory://")?));
    if cfg!(feature = "sqlite") {
        fleet.subjects.push(Arc::new(Ours::temporary_sqlite()?));
        #[cfg(feature = "sqlite")]
        fleet.subjects.push(Arc::new(baseline::sqlite::File::new()?));
    }
    for (store, built) in start::STORES {
        if !built {
            continue;
        }
        match start::start(store).await {
            Ok(server) => fleet.add(server)?,
            Err(why) => fleet.left_out.push(format!("{store}: {why}")),
        }
    }
    Ok(fleet)
}

impl Fleet {
    fn add(&mut self, server: Running) -> Result<(), Failure> {
        for (label, url) in start::urls(&server) {
            let ours = Ours::new(Some(&label), &url)?;
            self.subjects.push(Arc::new(ours.served_by(Arc::clone(&server.counter), &server.version)));
        }
        self.subjects.extend(baseline::of(&server));
        self.servers.push(server);
        Ok(())
    }
}
