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
    /// Together with other permits, while the sum of their weights is at most the smallest limit among them.
    Permit {
        /// How much the semaphore has. It may differ from entry to entry, as while a fleet is given another limit.
        limit: NonZeroU32,
        /// How much of it this entry takes: at most `limit`.
        weight: NonZeroU32,
    },
}

impl Mode {
    /// One permit of a semaphore that has `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when `limit` is 0.
    pub fn permit(limit: u32) -> Result<Self, Error> {
        match NonZeroU32::new(limit) {
            Some(limit) => Ok(Self::Permit { limit, weight: NonZeroU32::MIN }),
            None => Err(Error::new(ErrorKind::InvalidConfig, "a semaphore needs at least 1 permit")),
        }
    }

    /// The same permit, taking so much of the limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when this is no permit, or the weight is 0 or larger than the limit.
    pub fn weighing(self, weight: u32) -> Result<Self, Error> {
        let Self::Permit { limit, .. } = self else {
            return Err(Error::new(ErrorKind::InvalidConfig, "only a permit of a semaphore has a weight"));
        };
        match NonZeroU32::new(weight) {
            Some(weight) if weight <= limit => Ok(Self::Permit { limit, weight }),
            _ => {
                let text = format!("a permit of {limit} weighs 1 to {limit}, not {weight}");
                Err(Error::new(ErrorKind::InvalidConfig, text))
            }
        }
    }

    /// Whether entries of these two modes can hold together at all: what permits weigh is not looked at.
    #[must_use]
    pub fn shares_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Shared, Self::Shared) | (Self::Permit { .. }, Self::Permit { .. }))
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
    let (mut last, mut weights, mut smallest) = (None::<Mode>, 0, u64::MAX);
    let holds = |next: &Mode| {
        if let Mode::Permit { limit, weight } = next {
            weights += u64::from(weight.get());
            smallest = smallest.min(limit.get().into());
        }
        last.replace(*next).is_none_or(|last| last.shares_with(*next) && weights <= smallest)
    };
    line.into_iter().take_while(holds).count()
}

/// `x`, `s`, or `p` and the limit, behind it `w` and the weight where that is not 1: the same text in every store.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("x"),
            Self::Shared => f.write_str("s"),
            Self::Permit { limit, weight } if weight.get() == 1 => write!(f, "p{limit}"),
            Self::Permit { limit, weight } => write!(f, "p{limit}w{weight}"),
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
                let permit = text.strip_prefix('p').ok_or_else(foreign)?;
                let (limit, weight) = permit.split_once('w').unwrap_or((permit, "1"));
                let number = |text: &str| text.parse::<u32>().map_err(|_| foreign());
                let mode = Self::permit(number(limit)?).and_then(|mode| mode.weighing(number(weight)?));
                let mode = mode.map_err(|_| foreign())?;
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
        assert_eq!(line("p3w2 p3w2"), 1);
        assert_eq!(line("p3w2 p3 p3"), 2);
        assert_eq!(line("p5w5 p5"), 1);
        assert_eq!(line("p1 s"), 1);
        assert_eq!(line("s p2"), 1);
    }

    /// The smallest limit counts, so that no limit is passed while services with an old and a new one run beside each other.
    #[test]
    fn the_smallest_limit_counts() {
        assert_eq!(line("p5 p3 p5"), 3);
        assert_eq!(line("p5 p3 p5 p5"), 3);
        assert_eq!(line("p5 p5 p5 p3"), 3);
        assert_eq!(line("p5 p5 p3 p3 p5"), 3);
        assert_eq!(line("p5w3 p3 p5"), 1);
        assert_eq!(line("p4294967295w4294967295 p4294967295"), 1);
    }

    #[test]
    fn a_weight_is_at_most_the_limit() {
        let permit = Mode::permit(3).unwrap();
        assert_eq!(permit.weighing(1).unwrap(), permit);
        assert_eq!(permit.weighing(2).unwrap().weighing(3).unwrap().to_string(), "p3w3");
        for (mode, weight) in [(permit, 0), (permit, 4), (Mode::Exclusive, 1), (Mode::Shared, 2)] {
            assert_eq!(mode.weighing(weight).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn modes_are_written_one_way() {
        for text in ["x", "s", "p1", "p2w2", "p40w12", "p4294967295"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "X",
            "p",
            "p0",
            "p01",
            "p+1",
            "p-1",
            "p4294967296",
            "s ",
            "p3w0",
            "p3w1",
            "p3w4",
            "p3w",
            "p3w+2",
            "pw2",
            "w2",
            "p3w2w2",
        ] {
            assert!(text.parse::<Mode>().is_err(), "{text:?}");
        }
    }
}
