//! What the server is sent instead of names.

use onelock_core::{HolderId, LockName};
use sha2::{Digest as _, Sha256};

/// What a lock is called at the server: a server's own locks have keys of a fixed length, so a digest is the name.
///
/// PostgreSQL takes the first 64 bits: of a million names two share a lock by a chance of one in 37 million. MySQL takes all
/// 256, in hexadecimal digits, which are as many as a name may have. Names that share a key only wait for each other.
pub(super) type Key = [u8; 32];

/// The key of `name` among those of `space`: what users of one server keep apart by.
pub(super) fn key(space: &str, name: &LockName) -> Key {
    // No byte of an encoded name or of a space is zero, so no two pairs are spelled alike.
    Sha256::digest(format!("onelock session\0{space}\0{}\0", name.encoded())).into()
}

/// The first 64 bits.
pub(super) fn short(&[a, b, c, d, e, f, g, h, ..]: &Key) -> i64 {
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What tells a holder's session from others, and does not tell the holder's id, which is the right to release.
pub(super) fn tag(holder: HolderId) -> String {
    hex::encode(&Sha256::digest(holder.as_u128().to_be_bytes())[..7])
}

/// A text of the server's life, as a number that is not zero.
#[cfg(feature = "mysql")]
pub(super) fn life(text: &[u8]) -> i64 {
    (short(&Sha256::digest(text).into()) & i64::MAX) | 1
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
                .map(|(space, text)| short(&key(space, &name(text))))
                .collect();
        assert_eq!(keys.len(), 7);
        // Other clients, of other versions too, must come to the same key: it is part of the format.
        assert_eq!(short(&key("onelock_session", &name("orders/42"))), KNOWN);
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn a_life_is_a_number_that_is_not_zero() {
        assert!(life(b"a") > 0 && life(b"a") == life(b"a") && life(b"a") != life(b"b"));
    }

    const KNOWN: i64 = 3_378_312_436_193_864_987;
}
