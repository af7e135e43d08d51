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
mod notices;
mod release;
mod renew;
mod thread;
mod wait;

pub use backend::SqliteBackend;
pub use config::SqliteConfig;

use onelock_core::Driver;
use onelock_core::driver::opening;

/// The SQLite store: locks in one file, shared by the processes of one host.
///
/// `sqlite:///var/lib/app/locks.db` names an absolute path, `sqlite://locks.db` and `sqlite://./data/locks.db` one
/// that is relative to the working directory at the time of opening. Bytes other than letters, digits, `/`, `.`, `-`
/// and `_` are written `%XX`; a relative path that has some in its first part begins with `./`. The folder must exist; the
/// file is made when it does not.
pub const SQLITE_DRIVER: Driver = Driver::new("sqlite", &["sqlite"], |url, context| {
    opening(async move { SqliteBackend::open(SqliteConfig::from_url(url)?, context.clock).await })
})
.example("sqlite:///var/lib/app/locks.db")
.about("one file, shared by the processes of one host")
.capabilities(backend::CAPABILITIES)
.options(SqliteConfig::OPTIONS);
