//! What the tests of this crate share: real ZooKeeper servers, and the store's side of the shared suite.
#![allow(dead_code, reason = "every test file uses its part")]

pub(crate) mod counter;
pub(crate) mod harness;
pub(crate) mod servers;

use std::time::Duration;

use onelock_conformance::servers::zookeeper::TICK;
use onelock_core::Capabilities;

/// What the store must declare on the test servers: their tick is 200 ms and their longest session two hours.
pub(crate) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::of_lines();
    capabilities.raise = false;
    capabilities.resume = false;
    capabilities.min_lease = TICK * 2;
    capabilities.max_lease = Duration::from_secs(7_200) * 9 / 10 - TICK * 2;
    capabilities
}
