//! The shared suite on a cluster of three nodes.

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
    onelock_conformance::run(RedisGroup::cluster(
        onelock_redis::CLUSTER_DRIVER,
        CAPABILITIES,
        counters::is_counter,
    ))
}
