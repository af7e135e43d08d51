//! The same names without async: for scripts, tests and thread pools.
//!
//! ```
//! let locks = onelock::blocking::connect("memory://")?;
//! let guard = locks.mutex("orders/42")?.acquire()?;
//! let receipt = guard.run(|| "paid")?; // an error when the lock was lost meanwhile
//! guard.release()?;
//! # assert_eq!(receipt, "paid");
//! # Ok::<(), onelock::Error>(())
//! ```

pub use onelock_core::around::blocking::{Guard, Lock, Locks, RwLock};

use crate::{Config, Result};

/// A client by URL, on a thread of its own; see [`crate::connect`].
///
/// # Errors
/// As [`crate::connect`]; [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside async code.
pub fn connect(url: &str) -> Result<Locks> {
    connect_with(Config::new(url))
}

/// A client by configuration, on a thread of its own; see [`crate::connect_with`].
///
/// # Errors
/// As [`connect`].
pub fn connect_with(config: impl Into<Config>) -> Result<Locks> {
    let config = config.into();
    onelock_core::around::blocking::connect_by(move || async move { crate::connect_with(config).await })
}
