//! Fencing at the resource: what it writes to refuses a holder that lost its lock without noticing.
//!
//! | the resource | what checks |
//! |---|---|
//! | a file, a socket, a device of this process | [`Fence::in_process`] |
//! | PostgreSQL, MySQL and MariaDB, SQLite | `fence::postgres`, `fence::mysql`, `fence::sqlite`: a row in the caller's own transaction |
//! | Redis | `fence::redis`: a script that compares and runs one command |
//! | etcd, the cluster of the locks | `fence::etcd`: a compare of a transaction, with the entry of the lock itself |
//! | ZooKeeper, the ensemble of the locks | `fence::zk`: a check of a multi, of the entry of the lock itself |
//!
//! A database or a Redis need not be the one that the locks are in. The modules are there with the store's feature.

#[cfg(feature = "tower")]
pub use onelock_core::around::fence_layer::{FenceLayer, Fenced};
pub use onelock_core::fence::*;
#[cfg(feature = "etcd")]
pub use onelock_etcd::fence as etcd;
#[cfg(feature = "redis")]
pub use onelock_redis::fence as redis;
#[cfg(feature = "mysql")]
pub use onelock_sql::fence::mysql;
#[cfg(feature = "postgres")]
pub use onelock_sql::fence::postgres;
#[cfg(all(feature = "sqlite", unix))]
pub use onelock_sql::fence::sqlite;
#[cfg(feature = "zk")]
pub use onelock_zk::fence as zk;
