//! The shared suite on the plain layout: what it cannot keep is left out, and said.

mod harness;

use std::process::ExitCode;

use harness::redis::Redis;
use onelock_core::{Capabilities, Driver};

/// What the store must declare on a server that keeps an append-only file.
const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::of_lines();
    caps.shared = false;
    caps.permits = false;
    caps.fifo = false;
    caps.push = false;
    caps.raise = false;
    caps.list = false;
    caps
};

const DRIVER: Driver = Driver::new("redis", &["redis", "rediss"], |mut url, context| {
    url.set("layout", "plain");
    onelock_redis::DRIVER.open(url, context)
})
.capabilities(CAPABILITIES)
.options(onelock_redis::DRIVER.options);

fn is_counter(key: &str) -> bool {
    let bucket = key.strip_prefix("onelock:plain:{").and_then(|rest| rest.strip_suffix("}:n"));
    bucket.is_some_and(|bucket| bucket.parse::<u32>().is_ok())
}

fn main() -> ExitCode {
    onelock_conformance::run(Redis::new(DRIVER, CAPABILITIES, is_counter).named("redis-plain"))
}
