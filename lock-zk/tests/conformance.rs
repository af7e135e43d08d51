//! The shared suite on real ZooKeeper servers, as a user with `CREATE`, `READ` and `DELETE` on the node above the names.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = onelock_conformance::run(support::harness::ZooKeeper { restricted: true });
    support::harness::end();
    code
}
