//! Whether the driver can speak TLS.

use onelock_core::{Error, Result};

/// Refuses a configuration that demands TLS to `server` in a build without it. What only prefers it goes without.
pub(crate) fn check(server: &str, demanded: bool) -> Result<()> {
    if !demanded || cfg!(any(feature = "tls-ring", feature = "tls-aws-lc")) {
        return Ok(());
    }
    Err(Error::not_compiled(format_args!("TLS to {server}"), &["tls-ring", "tls-aws-lc"]))
}
