//! The PostgreSQL store: some tables and a function for each verb. See the crate's README for what it promises, the rights
//! it needs and how to look at a lock with `psql`.

mod acquire;
mod backend;
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
pub use config::{POSTGRES_DRIVER, PostgresConfig};
pub use migrate::migration;
