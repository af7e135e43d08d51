//! The shared suite on a cluster of three nodes.

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
    lock_conformance::run(RedisGroup::cluster(lock_redis::CLUSTER_DRIVER, CAPABILITIES, counters::is_counter))
}
