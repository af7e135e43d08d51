//! What is this store's own, on real servers. One program, so that its tests wait side by side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod clocks;
mod common;
mod connecting;
mod cut;
mod damage;
mod differential;
mod failover;
mod faults;
mod fence;
mod harness;
mod limits;
mod plain;
mod power;
mod quorum;
mod quorum_gate;
mod quorum_members;
mod quorum_minority;
mod red_handed;
mod resharding;
mod rewriting;
mod rights;
mod settings;
mod tls;
mod tokens;
mod verbs;
