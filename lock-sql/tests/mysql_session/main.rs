//! Session locks against real MariaDB servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../mysql_server/mod.rs"]
mod mysql_server;

// Some of it only the shared suite uses.
#[allow(dead_code)]
mod harness;

mod numbers;
mod queue;
