//! What is this store's own, on real servers. One program, so that its tests wait side by side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod cluster;
mod cost;
mod fence;
mod interop;
mod leases;
mod long;
mod operator;
mod power;
mod rejoin;
mod restore;
mod rights;
mod silence;
mod space;
mod support;
mod tokens;
mod ttl;
mod verbs;
