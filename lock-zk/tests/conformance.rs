//! The shared suite on real ZooKeeper servers.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = lock_conformance::run(support::harness::ZooKeeper::default());
    support::harness::end();
    code
}
