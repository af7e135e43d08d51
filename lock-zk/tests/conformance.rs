//! The shared suite on real ZooKeeper servers.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_conformance::run(support::harness::ZooKeeper)
}
