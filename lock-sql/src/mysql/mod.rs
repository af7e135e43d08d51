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
pub use config::MySqlConfig;

use onelock_core::Driver;
use onelock_core::driver::opening;

/// The MySQL and MariaDB store: `mysql://user:password@host:3306/database?option=value`; `mariadb` means the same.
pub const MYSQL_DRIVER: Driver = Driver::new("mysql", &["mysql", "mariadb"], |url, _| {
    opening(async move { MySqlBackend::connect(MySqlConfig::from_url(url)?).await })
})
.example("mysql://locks:secret@127.0.0.1:3306/app")
.about("three tables in a MariaDB or MySQL database")
.capabilities(backend::CAPABILITIES)
.options(MySqlConfig::OPTIONS);
