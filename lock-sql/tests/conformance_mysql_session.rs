//! The shared suite on session locks of MariaDB servers, as a user who has the run-time rights of the store's page and no
//! other. What session locks do not promise is left out, and said.

mod mysql_server;

#[path = "session/mysql_harness.rs"]
mod harness;
#[path = "session/lacks.rs"]
mod lacks;

use std::process::ExitCode;

fn main() -> ExitCode {
    onelock_conformance::run(harness::MySqlSession)
}
