//! Fencing tokens: the number of an entry in its line, growing with every later holder.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::error::{Error, ErrorKind, Result};

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
/// another, so that tokens keep growing across the move. A store refuses an epoch smaller than the largest it has served.
///
/// A store either puts the epoch into its numbers ([`TokenEpoch::next`]) or keeps its numbers below 2^48 and the largest
/// epoch in a record of its own ([`TokenEpoch::check`]); the client adds the epoch to a number that does not carry one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct TokenEpoch(u16);

impl TokenEpoch {
    const SHIFT: u32 = 48;
    const LOW: i64 = (1 << Self::SHIFT) - 1;
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

    /// The epoch that a number or a counter carries: its high bits. A negative counter has none.
    #[must_use]
    pub const fn of(number: i64) -> Self {
        if number < 0 { Self(0) } else { Self((number >> Self::SHIFT) as u16) }
    }

    /// Refuses this epoch where a client of a larger one has joined before.
    ///
    /// # Errors
    /// [`TokenEpoch::refused`].
    pub fn check(self, newest: Self) -> Result<()> {
        if self < newest { Err(self.refused(newest)) } else { Ok(()) }
    }

    /// Refuses to raise a counter of this epoch to a token of a later one: only an acquire begins an epoch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`].
    pub fn check_raise(self, token: FencingToken) -> Result<()> {
        if Self::of(token.0) <= self {
            return Ok(());
        }
        let text =
            format!("the token {token} is of a later token epoch than {}, which the store counts in", self.0);
        Err(Error::new(ErrorKind::InvalidConfig, text))
    }

    /// The error of an acquire whose epoch is smaller than `newest`, the largest the store has served. Nothing was sent
    /// or nothing happened.
    #[must_use]
    pub fn refused(self, newest: Self) -> Error {
        let text = format!(
            "token_epoch={} is smaller than {}, which a client of this store has used, so tokens would go back; set \
             token_epoch={} or larger for every client",
            self.0, newest.0, newest.0
        );
        Error::new(ErrorKind::InvalidConfig, text)
    }

    /// The number after `counter` for a store whose counter carries the epoch. The low bits go on from the counter's, so
    /// that no two numbers differ in the epoch alone.
    ///
    /// # Errors
    /// [`TokenEpoch::refused`] when the counter is of a later epoch; [`ErrorKind::Full`] after the last number of the epoch.
    pub fn next(self, counter: i64) -> Result<FencingToken> {
        self.check(Self::of(counter))?;
        let low = counter & Self::LOW;
        if low == Self::LOW {
            let text = format!("the store has no number left in token_epoch={}; set a larger one", self.0);
            return Err(Error::new(ErrorKind::Full, text));
        }
        Ok(FencingToken(self.high() | (low + 1)))
    }

    const fn high(self) -> i64 {
        (self.0 as i64) << Self::SHIFT
    }

    /// The token the user sees for the store's number `raw`.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when an epoch is set and the store's number carries another.
    pub fn seal(self, raw: FencingToken) -> Result<FencingToken> {
        let carries = Self::of(raw.0);
        if self.0 != 0 && carries.0 != 0 && carries != self {
            let text =
                format!("the store's number {raw} carries token epoch {} and not {}", carries.0, self.0);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        Ok(self.shown(raw))
    }

    /// The token that somebody else's entry is shown with: its number where that carries an epoch.
    #[must_use]
    pub const fn shown(self, raw: FencingToken) -> FencingToken {
        if Self::of(raw.0).0 != 0 { raw } else { FencingToken(raw.0 | self.high()) }
    }

    /// The store's number behind a token of this epoch where its numbers do not carry it; `None` for a token of another
    /// epoch, and without an epoch, where token and number are the same.
    #[must_use]
    pub fn open(self, token: FencingToken) -> Option<FencingToken> {
        let raw = token.get() & Self::LOW;
        (self.0 != 0 && Self::of(token.0) == self && raw > 0).then_some(FencingToken(raw))
    }

    /// `token` as a store counts that gave the number `like` to an entry of this epoch.
    #[must_use]
    pub fn counted_like(self, token: FencingToken, like: FencingToken) -> FencingToken {
        if Self::of(like.0).0 == 0 { self.open(token).unwrap_or(token) } else { token }
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

    fn epoch(epoch: u16) -> TokenEpoch {
        TokenEpoch::new(epoch).unwrap()
    }

    #[test]
    fn a_later_epoch_makes_every_token_larger() {
        let (old, new) = (epoch(1), epoch(2));
        let late = old.seal(FencingToken(1 << 40)).unwrap();
        let early = new.seal(FencingToken(1)).unwrap();
        assert!(early > late);
        assert_eq!(new.open(early), Some(FencingToken(1)));
        assert_eq!((new.open(late), epoch(0).open(late)), (None, None));
        assert!(new.seal(FencingToken(1 << 48)).is_err());
        assert!(epoch(TokenEpoch::MAX).seal(FencingToken(1)).unwrap().get() > 0);
        assert!(TokenEpoch::new(TokenEpoch::MAX + 1).is_err());
    }

    #[test]
    fn a_number_that_carries_its_epoch_is_left_alone() {
        let two = epoch(2).next(7).unwrap();
        assert_eq!(two.get(), (2 << 48) + 8);
        assert_eq!(epoch(2).seal(two).unwrap(), two);
        assert_eq!(epoch(0).seal(two).unwrap(), two);
        assert!(epoch(3).seal(two).is_err());
        assert_eq!(epoch(3).shown(two), two);
        assert_eq!(epoch(2).counted_like(two, FencingToken(5)), FencingToken(8));
        assert_eq!(epoch(2).counted_like(two, two), two);
    }

    #[test]
    fn a_counter_never_goes_back_to_a_smaller_epoch() {
        let counter = epoch(2).next(0).unwrap().get();
        for small in [0, 1] {
            let error = epoch(small).next(counter).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(&format!("token_epoch={small} is smaller than 2")), "{error}");
        }
        assert_eq!(epoch(2).next(counter).unwrap().get(), counter + 1);
        assert_eq!(epoch(1).next((2 << 48) - 1).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(epoch(0).next(i64::from(u32::MAX)).unwrap().get(), 1 << 32);
    }
}
