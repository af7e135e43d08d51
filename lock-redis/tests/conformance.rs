//! The shared suite on real redis-servers, as the user that the page tells people to make.

mod counters;
mod harness;

use std::process::ExitCode;

use harness::redis::Redis;
use onelock_core::Capabilities;

/// What the store must declare on a server that keeps an append-only file.
const CAPABILITIES: Capabilities = Capabilities::of_lines();

fn main() -> ExitCode {
    let page = include_str!("../README.md");
    let Some(rights) = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER locker ")) else {
        eprintln!("the page does not say which rights a user needs");
        return ExitCode::FAILURE;
    };
    // A password that nothing else is called.
    let rights = rights.replace(">secret", ">lockers-never-printed");
    let redis = Redis::new(onelock_redis::DRIVER, CAPABILITIES, counters::is_counter);
    onelock_conformance::run(redis.restricted_to("locker", "lockers-never-printed", &rights))
}
