//! Session locks against real servers: what every server must do stands once, and runs on each of them.
#![cfg(any(feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

// Some of it only the shared suite uses.
#[cfg(feature = "postgres")]
#[allow(dead_code)]
#[path = "../postgres_server/mod.rs"]
mod postgres_server;

#[cfg(feature = "mysql")]
#[path = "../mysql_server/mod.rs"]
mod mysql_server;

#[cfg(feature = "postgres")]
#[allow(dead_code)]
mod postgres_harness;

#[cfg(feature = "mysql")]
#[allow(dead_code)]
mod mysql_harness;

#[path = "../way/mod.rs"]
mod way;

// For the shared suite.
#[allow(dead_code)]
mod lacks;

mod numbers;
mod queue;
mod server;
mod silence;
mod turns;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_numbers;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_numbers;
