//! Session locks against real servers.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

// Some of it only the shared suite uses.
#[allow(dead_code)]
#[path = "../postgres_server/mod.rs"]
mod postgres_server;

#[allow(dead_code)]
mod postgres_harness;

mod postgres;
mod postgres_numbers;
