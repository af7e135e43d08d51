//! The shared suite on real PostgreSQL servers, as a role that has the run-time rights of the store's page and no other.

// Some of it only the store's own tests and the other suite use.
#[allow(dead_code)]
mod postgres_server;

use std::process::ExitCode;

fn main() -> ExitCode {
    onelock_conformance::run(postgres_server::harness::Postgres::default())
}
