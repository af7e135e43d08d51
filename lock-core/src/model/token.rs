//! Fencing tokens: the number of an entry in its line, growing with every later holder.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};

/// A positive number that grows with every later holder of a name. A resource that remembers the largest one it has
/// seen can refuse the writes of a holder that lost the lock without noticing.
///
/// It is the entry's place in the line, given when it joins. In JSON it is a string, because many readers keep only
/// 53 bits of a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(i64);

impl FencingToken {
    /// A token of this value.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when it is not positive.
    pub fn new(value: i64) -> Result<Self> {
        if value > 0 {
            Ok(Self(value))
        } else {
            Err(Error::new(ErrorKind::Protocol, format!("a fencing token is positive, {value} is not")))
        }
    }

    /// Its value, from 1 to `i64::MAX`.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for FencingToken {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::InvalidConfig, format!("{text:?} is not a fencing token"));
        Self::new(text.parse().map_err(|_| bad())?).map_err(|_| bad())
    }
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The high bits of every token of a client: raised by hand when a store is restored from a backup or swapped for
/// another, so that tokens keep growing across the move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct TokenEpoch(u16);

impl TokenEpoch {
    const SHIFT: u32 = 48;
    /// The largest epoch: 15 bits above the 48 of the store's own number.
    pub const MAX: u16 = (1 << 15) - 1;

    /// This epoch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] above [`TokenEpoch::MAX`].
    pub fn new(epoch: u16) -> Result<Self> {
        if epoch <= Self::MAX {
            Ok(Self(epoch))
        } else {
            Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("token_epoch is at most {}, not {epoch}", Self::MAX),
            ))
        }
    }

    /// The token the user sees for the store's number `raw`.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when an epoch is set and the store's number does not fit below it.
    pub fn seal(self, raw: FencingToken) -> Result<FencingToken> {
        if self.0 == 0 {
            return Ok(raw);
        }
        if raw.get() >> Self::SHIFT != 0 {
            let text = format!("the store's number {raw} leaves no room for a token epoch");
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        Ok(FencingToken(raw.get() | (i64::from(self.0) << Self::SHIFT)))
    }

    /// The store's number behind a token the user gave; `None` when it is of another epoch.
    #[must_use]
    pub fn open(self, token: FencingToken) -> Option<FencingToken> {
        if self.0 == 0 {
            return Some(token);
        }
        let raw = token.get() & ((1 << Self::SHIFT) - 1);
        (token.get() >> Self::SHIFT == i64::from(self.0) && raw > 0).then_some(FencingToken(raw))
    }
}

impl TryFrom<u16> for TokenEpoch {
    type Error = Error;
    fn try_from(epoch: u16) -> Result<Self> {
        Self::new(epoch)
    }
}

impl From<TokenEpoch> for u16 {
    fn from(epoch: TokenEpoch) -> Self {
        epoch.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_positive_and_strings_in_json() {
        assert!(FencingToken::new(0).is_err());
        assert!(FencingToken::new(-1).is_err());
        let token = FencingToken::new(i64::MAX).unwrap();
        assert_eq!(serde_json::to_string(&token).unwrap(), "\"9223372036854775807\"");
        assert_eq!(serde_json::from_str::<FencingToken>("\"7\"").unwrap().get(), 7);
        for bad in ["\"0\"", "\"-3\"", "\"x\"", "7"] {
            assert!(serde_json::from_str::<FencingToken>(bad).is_err());
        }
    }

    #[test]
    fn a_later_epoch_makes_every_token_larger() {
        let (old, new) = (TokenEpoch::new(1).unwrap(), TokenEpoch::new(2).unwrap());
        let late = old.seal(FencingToken(1 << 40)).unwrap();
        let early = new.seal(FencingToken(1)).unwrap();
        assert!(early > late);
        assert_eq!(new.open(early), Some(FencingToken(1)));
        assert_eq!(new.open(late), None);
        assert!(new.seal(FencingToken(1 << 48)).is_err());
        assert!(TokenEpoch::new(TokenEpoch::MAX).unwrap().seal(FencingToken(1)).unwrap().get() > 0);
        assert!(TokenEpoch::new(TokenEpoch::MAX + 1).is_err());
    }
}
