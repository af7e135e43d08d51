//! The shared suite on real redis-servers.

mod counters;

use std::process::ExitCode;

use lock_conformance::harness::redis::Redis;
use lock_core::Capabilities;

/// What the store must declare on a server that keeps an append-only file.
const CAPABILITIES: Capabilities = Capabilities::full();

fn main() -> ExitCode {
    lock_conformance::run(Redis::new(lock_redis::DRIVER, CAPABILITIES, counters::is_counter))
}
