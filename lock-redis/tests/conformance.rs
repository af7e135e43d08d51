//! The shared suite on real redis-servers.

use std::process::ExitCode;

use lock_conformance::harness::redis::Redis;
use lock_core::Capabilities;

/// What the store must declare on a server that keeps an append-only file.
const CAPABILITIES: Capabilities = Capabilities::full();

/// The counter of a bucket of names: `prefix:{bucket}:n`.
fn is_counter(key: &str) -> bool {
    let bucket = key.strip_prefix("onelock:{").and_then(|rest| rest.strip_suffix("}:n"));
    bucket.is_some_and(|bucket| bucket.parse::<u32>().is_ok())
}

fn main() -> ExitCode {
    lock_conformance::run(Redis::new(lock_redis::DRIVER, CAPABILITIES, is_counter))
}
