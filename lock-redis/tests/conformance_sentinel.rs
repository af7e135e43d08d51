//! The shared suite on a master with a replica and three sentinels.

mod counters;
mod harness;

use std::process::ExitCode;

use harness::redis_group::RedisGroup;
use onelock_core::Capabilities;

/// What the store must declare on servers that keep an append-only file.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::of_lines();
    caps.raise = false;
    caps
};

fn main() -> ExitCode {
    onelock_conformance::run(RedisGroup::sentinel(
        onelock_redis::SENTINEL_DRIVER,
        CAPABILITIES,
        counters::is_counter,
    ))
}
