//! The SQLite store against real files.
#![cfg(feature = "sqlite")]

mod against_the_line;
mod files;
mod sharing;
mod support;
mod waiting;
