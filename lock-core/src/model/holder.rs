//! Holder ids: one per acquisition, never per object, task, thread or client.

use std::collections::HashMap;
use std::fmt;

use crate::model::error::{Error, ErrorKind, Result};

/// 128 random bits that name one acquisition. Anyone who knows it can release the lock, so it is not shown in full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(u128);

impl HolderId {
    /// A fresh id from the operating system's random source.
    ///
    /// Asked for each one, though drawing many at a time would take less: a process that is forked, or restored twice from one
    /// snapshot of its machine, would give the same id to two, and both would hold.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the operating system has no random numbers to give.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|e| Error::new(ErrorKind::Unavailable, format!("no random numbers: {e}")))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }

    /// An id of this value, for tests and for reading an id back from a store.
    #[must_use]
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// Its value.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// All of it, as 32 hexadecimal digits: for the store, not for a log.
    #[must_use]
    pub fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }

    /// Reads 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let ok = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        ok.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

/// A holder id in the state of a store. The type itself has no serde, so that none is written by mistake.
pub(crate) mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::HolderId;

    pub(crate) fn serialize<S: Serializer>(id: &HolderId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&id.to_hex())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<HolderId, D::Error> {
        let read = HolderId::from_hex(&String::deserialize(from)?);
        read.ok_or_else(|| D::Error::custom("a holder id is 32 hexadecimal digits"))
    }
}

/// What is known by holder.
pub type HolderMap<V> = HashMap<HolderId, V>;

/// The first 8 digits: enough to tell entries apart, not enough to release one.
impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_come_back() {
        let (a, b) = (HolderId::random().unwrap(), HolderId::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(HolderId::from_hex(&a.to_hex()), Some(a));
        assert_eq!(HolderId(0x0f1e).to_hex(), format!("{:032x}", 0x0f1e));
        assert_eq!(HolderId::from_hex("0"), None);
        assert_eq!(HolderId::from_hex(&"G".repeat(32)), None);
        assert!(!format!("{a:?}{a}").contains(&a.to_hex()));
    }
}
