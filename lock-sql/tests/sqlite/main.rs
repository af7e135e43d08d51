//! The SQLite store against real files.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod against_the_line;
mod costs;
mod fence;
mod files;
mod one_kernel;
mod power;
mod sharing;
mod support;
mod waiting;
