#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod config;
mod connection;
mod error;
pub mod fence;
mod inspect;
mod keys;
mod readmission;
mod release;
mod renew;
mod reply;
mod scripts;
mod topology;
mod wait;

pub use backend::RedisBackend;
pub use config::{Gate, Layout, RedisConfig, Topology};
pub use onelock_core::Host;
pub use readmission::RedisGate;
/// The driver, whose client [`RedisConfig::of_client`] takes.
pub use redis;

use onelock_core::driver::{Context, Opening, opening};
use onelock_core::{Driver, StoreUrl};

/// How a `redis://` or `rediss://` URL becomes a backend.
pub const DRIVER: Driver = Driver::new("redis", &["redis", "rediss", "redis+unix"], open_url)
    .example("redis://user:password@127.0.0.1:6379/0?namespace=onelock")
    .about(
        "one Redis server, 7.0 or later; rediss is the same over TLS, redis+unix:///path over a Unix socket",
    )
    .capabilities(RedisBackend::declared())
    .options(RedisConfig::OPTIONS);

/// How a `redis+sentinel://` or `rediss+sentinel://` URL becomes a backend.
pub const SENTINEL_DRIVER: Driver =
    Driver::new("redis-sentinel", &["redis+sentinel", "rediss+sentinel"], open_url)
        .example("redis+sentinel://user:password@host1:26379,host2,host3/master-name/0?replicas=1")
        .about("the Redis master that sentinels watch over; rediss+sentinel is the same over TLS")
        .capabilities(RedisBackend::declared_of_many())
        .options(RedisConfig::OPTIONS);

/// How a `redis+cluster://` or `rediss+cluster://` URL becomes a backend.
pub const CLUSTER_DRIVER: Driver =
    Driver::new("redis-cluster", &["redis+cluster", "rediss+cluster"], open_url)
        .example("redis+cluster://user:password@host1:6379,host2,host3?replicas=1")
        .about("a Redis Cluster, names spread over its nodes; rediss+cluster is the same over TLS")
        .capabilities(RedisBackend::declared_of_many())
        .options(RedisConfig::OPTIONS);

fn open_url(url: StoreUrl, _: Context) -> Opening {
    opening(async move { RedisBackend::connect(RedisConfig::try_from(url)?).await })
}

/// Connects to the store of this configuration.
pub fn open(config: RedisConfig) -> Opening {
    opening(RedisBackend::connect(config))
}
