//! SQL stores of onelock, one per cargo feature.
//!
//! - `sqlite`: [`SqliteBackend`], the embedded store. Processes on one host share locks through one file.
//!
//! A store is opened from a URL through its [`lock_core::Driver`] ([`SQLITE_DRIVER`]) or from a config struct.

#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::{SQLITE_DRIVER, SqliteBackend, SqliteConfig};
