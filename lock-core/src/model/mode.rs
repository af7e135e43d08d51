//! How an entry shares the lock, and the rule that says who holds: the longest compatible prefix of the line.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::error::{Error, ErrorKind};

/// How an entry shares the lock with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared entries.
    Shared,
    /// Together with other permits of the same limit, while fewer than the limit hold.
    Permit(NonZeroU32),
}

impl Mode {
    /// A permit of a semaphore with `limit` permits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when `limit` is 0.
    pub fn permit(limit: u32) -> Result<Self, Error> {
        NonZeroU32::new(limit)
            .map(Self::Permit)
            .ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "a semaphore needs at least 1 permit"))
    }

    /// Whether an entry of this mode holds too, given that exactly `holders` entries hold before it in the line and
    /// the first of them is of mode `first`.
    ///
    /// Holders are mutually compatible, so the first one's mode speaks for all of them.
    #[must_use]
    pub fn fits(self, holders: usize, first: Option<Self>) -> bool {
        match (self, first) {
            (_, None) => holders == 0,
            (Self::Shared, Some(Self::Shared)) => true,
            (Self::Permit(n), Some(Self::Permit(m))) => n == m && holders < n.get() as usize,
            _ => false,
        }
    }

    /// Whether a holder of this mode already has what `other` asks for: an owner re-enters then.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self == other || (self == Self::Exclusive && other == Self::Shared)
    }
}

/// How many entries from the front of a line hold: the longest prefix whose entries are mutually compatible.
///
/// This is the one rule of the whole library; every store's script or statement says the same.
pub fn holders(line: impl IntoIterator<Item = Mode>) -> usize {
    let mut first = None;
    let mut count = 0;
    for mode in line {
        if !mode.fits(count, first) {
            break;
        }
        first.get_or_insert(mode);
        count += 1;
    }
    count
}

/// `x`, `s`, or `p` and the limit: the same text in every store.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("x"),
            Self::Shared => f.write_str("s"),
            Self::Permit(n) => write!(f, "p{n}"),
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let foreign = || Error::new(ErrorKind::Foreign, format!("{text:?} is not a lock mode"));
        match text {
            "x" => Ok(Self::Exclusive),
            "s" => Ok(Self::Shared),
            _ => {
                let limit = text.strip_prefix('p').ok_or_else(foreign)?;
                let limit: NonZeroU32 = limit.parse().map_err(|_| foreign())?;
                let mode = Self::Permit(limit);
                if mode.to_string() == text { Ok(mode) } else { Err(foreign()) }
            }
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(modes: &str) -> usize {
        holders(modes.split(' ').filter(|m| !m.is_empty()).map(|m| m.parse().unwrap()))
    }

    #[test]
    fn the_compatible_prefix_holds() {
        assert_eq!(line(""), 0);
        assert_eq!(line("x x"), 1);
        assert_eq!(line("s s x s"), 2);
        assert_eq!(line("x s s"), 1);
        assert_eq!(line("p3 p3 x p3 s s"), 2);
        assert_eq!(line("p3 p3 p3 p3"), 3);
        assert_eq!(line("p5 p3 p5"), 1);
        assert_eq!(line("p1 s"), 1);
        assert_eq!(line("s p2"), 1);
    }

    #[test]
    fn modes_are_written_one_way() {
        for text in ["x", "s", "p1", "p4294967295"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
        for text in ["", "X", "p", "p0", "p01", "p+1", "p-1", "p4294967296", "s "] {
            assert!(text.parse::<Mode>().is_err(), "{text:?}");
        }
    }
}
