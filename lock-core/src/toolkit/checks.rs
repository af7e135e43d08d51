//! What the configurations of several stores have in common, checked before any I/O.
//!
//! ```
//! use std::time::Duration;
//! use onelock_core::Host;
//! use onelock_core::toolkit::checks;
//!
//! assert!(checks::hosts(&[Host::new("db.internal", 5432)]).is_ok());
//! assert!(checks::hosts(&[Host::new("db internal", 5432)]).is_err());
//! assert!(checks::times(&[Duration::from_secs(2)]).is_ok());
//! assert!(checks::times(&[Duration::ZERO]).is_err());
//! assert!(checks::wrong_if(true, "poll is from 1ms to 1s").is_err());
//! ```

use std::path::PathBuf;
use std::time::Duration;

use super::Credentials;
use crate::error::{Error, ErrorKind, Result};
use crate::url::{Host, Secret};

/// The limits that a store may set on its requests: 1 ms to 10 minutes.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] when one is not within them.
pub fn times(times: &[Duration]) -> Result<()> {
    let good = Duration::from_millis(1)..=Duration::from_secs(600);
    wrong_if(
        !times.iter().all(|time| good.contains(time)),
        "connect_timeout, request_timeout and other times are from 1ms to 10m",
    )
}

/// The servers: at least one, each with a name and a port, or the path of its socket.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for the first that cannot be one.
pub fn hosts(hosts: &[Host]) -> Result<()> {
    wrong_if(hosts.is_empty(), "no host is named")?;
    for host in hosts {
        let bad = |c: char| c.is_whitespace() || c.is_control() || "/,@?#[]".contains(c);
        let malformed = if host.is_socket() {
            host.host.contains(char::is_control)
        } else {
            host.host.is_empty() || host.host.contains(bad)
        };
        wrong_if(malformed, "the host is malformed")?;
        wrong_if(host.port == 0 && !host.is_socket(), "the port is a number from 1 to 65535")?;
    }
    Ok(())
}

/// A client's certificate has a key.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for one without the other.
pub fn pair(tls_cert: Option<&PathBuf>, tls_key: Option<&PathBuf>) -> Result<()> {
    wrong_if(tls_cert.is_some() != tls_key.is_some(), "tls_cert and tls_key go together")
}

/// A callback for credentials gives both the user and the password.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] where one of them is given beside it.
pub fn credentials(
    callback: Option<&Credentials>,
    user: Option<&str>,
    password: Option<&Secret>,
) -> Result<()> {
    let both = callback.is_some() && (user.is_some() || password.is_some());
    wrong_if(both, "the callback for credentials gives the user and the password: leave them out")
}

/// What a store checks of its own: nothing unless it is wrong.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] with `text`, if `wrong`.
pub fn wrong_if(wrong: bool, text: &str) -> Result<()> {
    if wrong { Err(Error::new(ErrorKind::InvalidConfig, text)) } else { Ok(()) }
}
