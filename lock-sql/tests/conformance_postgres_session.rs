//! The shared suite on session locks of real PostgreSQL servers, as a role that has the run-time rights of the store's page
//! and no other. What session locks do not promise is left out, and said.

// Some of it only the other suites use.
#[allow(dead_code)]
mod postgres_server;

#[path = "session/postgres_harness.rs"]
mod harness;
#[path = "session/lacks.rs"]
mod lacks;

use std::process::ExitCode;

fn main() -> ExitCode {
    onelock_conformance::run(harness::PostgresSession)
}
