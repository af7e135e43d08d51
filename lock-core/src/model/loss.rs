//! Why a hold ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// The lease was not renewed in time: by this client's own clock it may have run out.
    Expired,
    /// The store has no such entry: it was evicted, or the store forgot it.
    NotHeld,
    /// The longest hold time is over.
    MaxHold,
    /// The client was closed.
    Closed,
    /// It was handed over to another process.
    HandedOver,
    /// It was given back.
    Released,
}

impl LossReason {
    /// Whether the lock was taken from its guard, which neither gave it back nor handed it over.
    #[must_use]
    pub const fn is_loss(self) -> bool {
        !matches!(self, Self::Released | Self::HandedOver)
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease was not renewed in time",
            Self::NotHeld => "the store no longer has the entry (evicted, or forgotten by the store)",
            Self::MaxHold => "the longest hold time is over",
            Self::Closed => "the client was closed",
            Self::HandedOver => "it was handed over to another process",
            Self::Released => "it was given back",
        })
    }
}
