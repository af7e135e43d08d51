//! The MySQL and MariaDB store: locks in three tables of a database. See MYSQL.md beside the crate for what it promises,
//! the rights it needs and how to look at a lock with the server's own client.

mod acquire;
mod backend;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod error;
mod inspect;
mod keys;
pub(crate) mod open;
pub(crate) mod pool;
mod release;
mod renew;
pub(crate) mod sql;
mod wait;

pub use backend::MySqlBackend;
pub use config::{MYSQL_DRIVER, MySqlConfig};
