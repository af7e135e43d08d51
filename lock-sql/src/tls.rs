//! How much TLS to ask for, and whether the driver can speak it.

use onelock_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// How much TLS to ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Tls {
    /// None; `disable` means the same.
    #[serde(alias = "disable")]
    Off,
    /// When the server offers it, and then without looking at its certificate. Does not protect from a man in the middle.
    #[default]
    Prefer,
    /// Always, without looking at the certificate.
    Require,
    /// Always, with a certificate of an authority that is trusted.
    VerifyCa,
    /// Always, with such a certificate that is for this host.
    VerifyFull,
}

impl Tls {
    /// Whether a connection without TLS will not do.
    pub(crate) fn is_demanded(self) -> bool {
        !matches!(self, Self::Off | Self::Prefer)
    }

    /// Refuses a configuration that demands TLS to `server` in a build without it. What only prefers it goes without.
    pub(crate) fn check(self, server: &str) -> Result<()> {
        if !self.is_demanded() || cfg!(any(feature = "tls-ring", feature = "tls-aws-lc")) {
            return Ok(());
        }
        Err(Error::not_compiled(format_args!("TLS to {server}"), &["tls-ring", "tls-aws-lc"]))
    }
}
