//! The shared suite on real etcd servers, as a user with `readwrite` on the prefix and no other right.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    onelock_conformance::run(support::store::Etcd { restricted: true })
}
