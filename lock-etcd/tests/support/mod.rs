//! Real etcd servers for the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod server;
pub(crate) mod store;

use std::time::Duration;

use onelock_core::Capabilities;

/// What the store must declare.
pub(crate) fn capabilities() -> Capabilities {
    let mut caps = Capabilities::of_lines();
    caps.raise = false;
    caps.min_lease = Duration::from_secs(2);
    caps.lease_step = Duration::from_secs(1);
    caps.granularity = Duration::from_millis(50);
    caps
}
