#![doc = include_str!("../README.md")]

mod backend;
mod client;
mod config;
mod error;
mod inbox;
mod keys;
mod link;
mod listing;
mod reply;
mod scripts;

pub use backend::RedisBackend;
pub use config::{OPTIONS, RedisConfig};

use std::sync::Arc;

use lock_core::{Backend, Driver};

/// How a `redis://` or `rediss://` URL becomes a backend.
pub const DRIVER: Driver = Driver {
    name: "redis",
    schemes: &["redis", "rediss"],
    example: "redis://user:password@127.0.0.1:6379/0?prefix=onelock",
    about: "one Redis server, 7.0 or later; rediss is the same over TLS",
    capabilities: RedisBackend::declared(),
    options: OPTIONS,
    open: |url, _clock| {
        Box::pin(async move {
            let config = RedisConfig::try_from(url)?;
            Ok(Arc::new(RedisBackend::connect(config).await?) as Arc<dyn Backend>)
        })
    },
};
