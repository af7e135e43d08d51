#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod client;
mod config;
mod entries;
mod error;
pub mod fence;
mod inspect;
mod keys;
mod lease;
mod line;
mod release;
mod renew;
#[cfg(feature = "tls")]
mod tls;
mod wait;
mod watches;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
/// The driver, whose client [`EtcdConfig::of_client`] takes.
pub use etcd_client;

use onelock_core::Driver;
use onelock_core::driver::opening;

/// How an `etcd://` or `etcds://` URL becomes a backend.
pub const DRIVER: Driver = Driver::new("etcd", &["etcd", "etcds"], |url, context| {
    opening(async move { EtcdBackend::connect_on(EtcdConfig::try_from(url)?, context.clock).await })
})
.example("etcd://user:password@a:2379,b:2379,c:2379/?namespace=onelock/")
.about("an etcd cluster, 3.4 or later (in production 3.5.23 or later); etcds is the same over TLS")
.capabilities(EtcdBackend::declared())
.options(EtcdConfig::OPTIONS);
