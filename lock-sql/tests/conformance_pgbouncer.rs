//! The shared suite on real PostgreSQL servers behind a pooler that gives each transaction another session.

// Some of it only the store's own tests and the other suite use.
#[allow(dead_code)]
mod postgres_server;

use std::process::ExitCode;

fn main() -> ExitCode {
    onelock_conformance::run(postgres_server::harness::Postgres { pooled: true })
}
