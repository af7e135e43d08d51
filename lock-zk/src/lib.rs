#![doc = include_str!("../README.md")]

// | module | what it owns |
// |---|---|
// | `config` | the address, the options, `DRIVER` |
// | `keys` | how names, entries and notes are written |
// | `line` | who holds, and what a waiter watches |
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
pub use config::{DRIVER, ZkConfig};
