//! The ZooKeeper store of onelock.
//!
//! An entry of a line is an ephemeral sequential node under the node of its name, laid out as Curator's
//! `InterProcessMutex` does, so that a Java service and this store exclude each other on a plain name. The order of the
//! line is the sequence, the fencing token is the node's `czxid`, a waiter watches the one node it waits for.
//!
//! | module | what it owns |
//! |---|---|
//! | [`config`] | the address, the options, [`DRIVER`] |
//! | `layout` | how names, entries and notes are written |
//! | `line` | who holds, and what a waiter watches |
//! | `session` | one session: bounded calls, and since when the leader must know that it lives |
//! | `pool` | a session per class of leases, and one for everything else |
//! | `table` | the entries of this client and the task that ends what nobody renews |
//! | `join`, `keep`, `wait`, `leave`, `look` | the verbs |
//! | `follow`, `listings` | what waiters of a session share, and what joins do |
//! | `group` | requests that many writes share |
//!
//! The README of this crate says what a crash, a pause, a partition and a clock step do, and which rights are needed.

mod backend;
pub mod config;
mod error;
mod follow;
mod group;
mod join;
mod keep;
mod layout;
mod leave;
mod line;
mod listings;
mod look;
mod pool;
mod session;
mod table;
mod wait;

pub use backend::ZkBackend;
pub use config::{DRIVER, ZkConfig};
