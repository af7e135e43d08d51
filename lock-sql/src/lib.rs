#![doc = include_str!("../README.md")]

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod divided;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod durability;
pub mod fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod hosts;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod inbox;
#[cfg(any(feature = "mysql", feature = "postgres", all(feature = "sqlite", unix)))]
mod listing;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod session;
#[cfg(all(feature = "sqlite", unix))]
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
#[cfg(all(feature = "sqlite", unix))]
pub use sqlite::{SQLITE_DRIVER, SqliteBackend, SqliteConfig};
/// The driver, whose pools [`PostgresConfig::of_pool`] and [`MySqlConfig::of_pool`] take.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use sqlx;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use tls::Tls;
