//! SQL stores of onelock, one per cargo feature.
//!
//! - `sqlite`: `SqliteBackend`, the embedded store. Processes on one host share locks through one file.
//! - `mysql`: `MySqlBackend`, three tables in a MariaDB or MySQL database; and session locks (`MYSQL_SESSION_DRIVER`), the
//!   server's own `GET_LOCK`.
//! - `postgres`: `PostgresBackend`, tables and functions in a PostgreSQL database; and session locks
//!   (`POSTGRES_SESSION_DRIVER`), the server's own advisory locks.
//!
//! A store is opened from a URL through its [`onelock_core::Driver`] (`SQLITE_DRIVER`) or from a config struct.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod durability;
pub mod fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod hosts;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod inbox;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod listing;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod session;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tls;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod unharmed;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod value;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use durability::Durability;
#[cfg(feature = "mysql")]
pub use mysql::{MYSQL_DRIVER, MySqlBackend, MySqlConfig};
#[cfg(feature = "postgres")]
pub use postgres::{POSTGRES_DRIVER, PostgresBackend, PostgresConfig};
#[cfg(feature = "mysql")]
pub use session::mysql::MYSQL_SESSION_DRIVER;
#[cfg(feature = "postgres")]
pub use session::postgres::POSTGRES_SESSION_DRIVER;
#[cfg(feature = "sqlite")]
pub use sqlite::{SQLITE_DRIVER, SqliteBackend, SqliteConfig};
/// The driver, whose pools [`PostgresConfig::of_pool`] and [`MySqlConfig::of_pool`] take.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use sqlx;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use tls::Tls;
