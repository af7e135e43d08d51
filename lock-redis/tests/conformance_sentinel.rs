//! The shared suite on a master with a replica and three sentinels.

mod counters;

use std::process::ExitCode;

use lock_conformance::harness::redis_group::RedisGroup;
use lock_core::Capabilities;

/// What the store must declare on servers that keep an append-only file.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::full();
    caps.raise = false;
    caps
};

fn main() -> ExitCode {
    lock_conformance::run(RedisGroup::sentinel(
        lock_redis::SENTINEL_DRIVER,
        CAPABILITIES,
        counters::is_counter,
    ))
}
