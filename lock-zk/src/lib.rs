#![doc = include_str!("../README.md")]

// | module | what it owns |
// |---|---|
// | `config` | the address, the options |
// | `keys` | how names, entries and notes are written |
// | `line` | which entries hold, and what a waiter watches |
// | `contact` | since when the leader must know that a session lives |
// | `session` | one session: bounded calls, and how long it lives at least |
// | `sessions` | the sessions of each class of leases, and one for everything else |
// | `batch` | requests that many writes share |
// | `epoch` | the largest token epoch that has joined |
// | `entries` | the entries of this client |
// | `acquire`, `wait`, `renew`, `release`, `inspect` | the verbs |
// | `fence` | checks for multis of the caller |

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
pub use config::ZkConfig;

use std::time::Duration;

use onelock_core::Driver;
use onelock_core::driver::opening;

/// How `zk:`, `zookeeper:` and `zks:` URLs are opened. The path is the node above all names; a user and a password mean
/// digest authentication, and nodes that only this user may touch. `zks` is TLS.
pub const DRIVER: Driver = Driver::new("zookeeper", &["zk", "zookeeper", "zks"], |url, context| {
    opening(async move { ZkBackend::connect(ZkConfig::from_url(url)?, context.clock).await })
})
.example("zk://zk1:2181,zk2:2181,zk3:2181/locks")
.about("Apache ZooKeeper, laid out as Curator's InterProcessMutex")
.capabilities(ZkBackend::declared(Duration::from_secs(2), Duration::from_secs(32)))
.options(ZkConfig::OPTIONS);
