//! The shared suite on session locks of MariaDB servers, as a user who has the run-time rights of the store's page and no
//! other. What session locks do not promise is left out, and said.

mod mysql_server;

#[path = "mysql_session/harness.rs"]
mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_conformance::run(harness::MySqlSession)
}
