//! The program, on real stores. One program of tests, so that they wait side by side.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[macro_use]
mod common;

#[cfg(all(feature = "bench", feature = "redis", feature = "sqlite"))]
mod bench;
mod bounds;
#[cfg(all(feature = "check", feature = "redis", feature = "sqlite"))]
mod check;
mod deadman;
mod elect;
mod gates;
mod line;
mod loss;
#[cfg(all(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zk"))]
mod moving;
mod nested;
mod operate;
mod run;
#[cfg(all(feature = "mysql", feature = "postgres"))]
mod session;
mod show;
mod surroundings;
mod terminal;
mod waiting;
#[cfg(all(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zk"))]
mod wrong_server;
