//! For whom an answer is, and whether it is a grant: one value, so that no altered byte turns one answer into another.

use lock_core::{Error, ErrorKind, HolderId, Result};

/// Whether an answer that says it is for `whose` says that `holder` holds: a grant names its holder; every other answer
/// names it with its halves swapped. An answer to somebody else's question, as a connection out of step gives, is none.
///
/// # Errors
/// When it is for nobody, or for somebody else.
pub(crate) fn holds(whose: &[u8], holder: HolderId) -> Result<bool> {
    let id = holder.as_u128();
    if whose == id.to_be_bytes() {
        return Ok(true);
    }
    if whose == id.rotate_left(64).to_be_bytes() {
        return Ok(false);
    }
    Err(Error::new(ErrorKind::Protocol, "the server answered somebody else's question"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_altered_byte_makes_a_grant() {
        let holder = HolderId::random().unwrap();
        let own = holder.as_u128().to_be_bytes();
        let other = holder.as_u128().rotate_left(64).to_be_bytes();
        assert!(holds(&own, holder).unwrap());
        assert!(!holds(&other, holder).unwrap());
        for at in 0..other.len() {
            for value in 0..=u8::MAX {
                let mut altered = other;
                altered[at] = value;
                assert!(!matches!(holds(&altered, holder), Ok(true)), "byte {at} as {value}");
            }
        }
        assert!(holds(&[], holder).is_err() && holds(&own[..15], holder).is_err());
    }
}
