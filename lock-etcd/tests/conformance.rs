//! The shared suite on real etcd servers.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_conformance::run(support::store::Etcd::default())
}
