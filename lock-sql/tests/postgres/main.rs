//! The PostgreSQL store against real servers.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::panic)]

// Some of it only the shared suite uses.
#[allow(dead_code)]
#[path = "../postgres_server/mod.rs"]
mod postgres_server;

#[path = "../way/mod.rs"]
mod way;

mod clocks;
mod connecting;
mod connections;
mod costs;
mod crowds;
mod durability;
mod failover;
mod fence;
mod limits;
mod notified;
mod numbers;
mod pooler;
mod power;
mod rights;
mod server;
mod sharing;
mod unanswered;
