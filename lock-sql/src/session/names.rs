//! What the server is sent instead of names.

use onelock_core::{HolderId, LockName};
use sha2::{Digest as _, Sha256};

/// What a lock is called at the server: a server's own locks have keys of a fixed length, so a digest is the name.
///
/// PostgreSQL takes the first 64 bits: of a million names two share a lock by a chance of one in 37 million. MySQL takes all
/// 256. Names that share a key only wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// The key of `name` among those of `space`: what users of one server keep apart by.
    pub(super) fn new(space: &str, name: &LockName) -> Self {
        let mut hash = Sha256::new();
        // No byte of an encoded name or of a space is zero, so no two pairs are spelled alike.
        for part in ["onelock session", space, &name.encoded()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        Self(hash.finalize().into())
    }

    /// All of it: in hexadecimal digits it is as long as a name may be.
    #[cfg(feature = "mysql")]
    pub(super) fn long(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 64 bits.
    #[cfg(any(test, feature = "postgres"))]
    pub(super) fn short(&self) -> i64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// What tells a holder's session from others, and does not tell the holder's id, which is the right to release.
pub(super) fn tag(holder: HolderId) -> String {
    hex::encode(&Sha256::digest(holder.as_u128().to_be_bytes())[..7])
}

/// A text of the server's life, as a number that is not zero.
#[cfg(feature = "mysql")]
pub(super) fn life(text: &[u8]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(text).into();
    (i64::from_be_bytes([a, b, c, d, e, f, g, h]) & i64::MAX) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_name_and_space() {
        let name = |text: &str| LockName::new(text).unwrap();
        let keys: std::collections::HashSet<_> =
            [("a", "b"), ("a", "c"), ("b", "b"), ("ab", "b"), ("a", "bb"), ("", "a"), ("a", "B")]
                .into_iter()
                .map(|(space, text)| Key::new(space, &name(text)).short())
                .collect();
        assert_eq!(keys.len(), 7);
        // Other clients, of other versions too, must come to the same key: it is part of the format.
        assert_eq!(Key::new("onelock_session", &name("orders/42")).short(), KNOWN);
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn a_life_is_a_number_that_is_not_zero() {
        assert!(life(b"a") > 0 && life(b"a") == life(b"a") && life(b"a") != life(b"b"));
    }

    const KNOWN: i64 = 3_378_312_436_193_864_987;
}
