//! The ZooKeeper store of onelock.
//!
//! An entry of a line is an ephemeral sequential node under the node of its name, laid out as Curator's
//! `InterProcessMutex` does, so that a Java service and this store exclude each other on a plain name. The order of the
//! line is the sequence, the fencing token is the node's `czxid`, a waiter watches the one node it waits for.
//!
//! | module | what it owns |
//! |---|---|
//! | [`config`] | the address, the options, [`DRIVER`] |
//! | `keys` | how names, entries and notes are written |
//! | `line` | who holds, and what a waiter watches |
//! | `contact` | since when the leader must know that a session lives |
//! | `session` | one session: bounded calls, and how long it lives at least |
//! | `sessions` | the sessions of each class of leases, and one for everything else |
//! | `batch` | requests that many writes share |
//! | `epoch` | the largest token epoch that has joined |
//! | `entries` | the entries of this client |
//! | `acquire`, `wait`, `renew`, `release`, `inspect` | the verbs |
//! | [`fence`] | checks for multis of the caller |
//!
//! The README of this crate says what a crash, a pause, a partition and a clock step do, and which rights are needed.

mod acquire;
mod backend;
mod batch;
pub mod config;
mod contact;
mod entries;
mod epoch;
mod error;
pub mod fence;
mod inspect;
mod keys;
mod line;
mod release;
mod renew;
mod session;
mod sessions;
#[cfg(feature = "zk-tls")]
mod tls;
mod wait;

pub use backend::ZkBackend;
pub use config::{DRIVER, ZkConfig};
