//! The SQLite store: locks in one file, shared by the processes of one host. See the crate's README for what it
//! promises and how to look at a lock with the `sqlite3` shell.

mod acquire;
mod backend;
mod boot;
mod config;
mod connection;
pub(crate) mod error;
mod file;
mod inspect;
mod line;
mod open;
mod release;
mod renew;
mod thread;
mod wait;

pub use backend::SqliteBackend;
pub use config::{SQLITE_DRIVER, SqliteConfig};
