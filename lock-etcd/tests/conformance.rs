//! The shared suite on real etcd servers.

mod support;

use std::process::ExitCode;
use std::time::Duration;

use lock_core::Capabilities;

/// What the store must declare.
fn capabilities() -> Capabilities {
    let mut caps = Capabilities::full();
    caps.raise = false;
    caps.min_lease = Duration::from_secs(2);
    caps.lease_step = Duration::from_secs(1);
    caps.granularity = Duration::from_millis(50);
    caps
}

fn main() -> ExitCode {
    lock_conformance::run(support::store::Etcd::new(capabilities()))
}
