//! For whom an answer is, and whether it is a grant: one value, so that no altered byte turns one answer into another.

use onelock_core::{Error, ErrorKind, HolderId, Result};

/// Whether an answer that says it is for `whose` says that `holder` holds: a grant names its holder; every other answer
/// says a zero and the holder: cut short by an altered length, that is no holder either. An answer to somebody else's question, as a connection out of step gives, is none.
///
/// # Errors
/// When it is for nobody, or for somebody else.
pub(crate) fn holds(whose: &[u8], holder: HolderId) -> Result<bool> {
    let own = holder.as_u128().to_be_bytes();
    match whose {
        [0, rest @ ..] if *rest == own => Ok(false),
        _ if *whose == own => Ok(true),
        _ => Err(Error::new(ErrorKind::Protocol, "the server answered somebody else's question")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_altered_byte_makes_a_grant() {
        for holder in [HolderId::random().unwrap(), HolderId::from_u128(u128::MAX)] {
            let own = holder.as_u128().to_be_bytes();
            let other = [&[0], &own[..]].concat();
            assert!(holds(&own, holder).unwrap() && !holds(&other, holder).unwrap());
            for at in 0..other.len() {
                for value in 0..=u8::MAX {
                    let mut altered = other.clone();
                    altered[at] = value;
                    assert!(!matches!(holds(&altered, holder), Ok(true)), "byte {at} as {value}");
                }
            }
            for length in 0..=own.len() {
                assert!(holds(&other[..length], holder).is_err(), "{length} bytes of it");
            }
        }
    }
}
