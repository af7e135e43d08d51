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

pub use backend::EtcdBackend;
pub use config::EtcdConfig;

use std::sync::Arc;

use onelock_core::{Backend, Driver};

/// How an `etcd://` or `etcds://` URL becomes a backend.
pub const DRIVER: Driver = Driver {
    name: "etcd",
    schemes: &["etcd", "etcds"],
    example: "etcd://user:password@a:2379,b:2379,c:2379/?namespace=onelock/",
    about: "an etcd cluster, 3.4 or later (in production 3.5.23 or later); etcds is the same over TLS",
    capabilities: EtcdBackend::declared(),
    options: EtcdConfig::OPTIONS,
    open: |url, clock| {
        Box::pin(async move {
            let config = EtcdConfig::try_from(url)?;
            Ok(Arc::new(EtcdBackend::connect_on(config, clock).await?) as Arc<dyn Backend>)
        })
    },
    gate: onelock_core::quorum::no_gate,
};
