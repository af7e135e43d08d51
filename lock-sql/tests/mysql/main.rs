//! The store on a real MariaDB server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../mysql_server/mod.rs"]
mod mysql_server;
mod support;

mod against_the_line;
mod clocks;
mod connecting;
mod cost;
mod faults;
mod fence;
mod line;
mod numbers;
mod polls;
mod power;
mod restarts;
mod server;
mod snapshot;
mod switch_over;
mod unanswered;
