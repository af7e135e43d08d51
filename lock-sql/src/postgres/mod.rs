//! The PostgreSQL store: some tables and a function for each verb. See the crate's README for what it promises, the rights
//! it needs and how to look at a lock with `psql`.

mod acquire;
mod backend;
mod client;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod error;
mod inspect;
mod listen;
pub(crate) mod migrate;
mod pool;
mod release;
mod renew;
mod reply;
mod sql;
mod wait;

pub use backend::PostgresBackend;
pub use config::PostgresConfig;
pub use migrate::migration;

use onelock_core::driver::opening;
use onelock_core::{Capabilities, Driver};

/// The PostgreSQL store: `postgres://user:password@host:5432/database`.
pub const POSTGRES_DRIVER: Driver = Driver::new("postgres", &["postgres", "postgresql"], |url, _| {
    opening(async move { PostgresBackend::open(PostgresConfig::from_url(url)?).await })
})
.example("postgres://app:password@db.internal/app")
.about("tables and functions in a PostgreSQL database")
.capabilities(Capabilities::of_lines())
.options(PostgresConfig::OPTIONS);
