//! What the values of requests and answers mean, the same on both servers.

use std::time::Duration;

use onelock_core::mode::holders;
use onelock_core::{
    Busy, EntryView, Error, ErrorKind, FencingToken, Grant, HolderId, LockName, Note, Place, Release,
    Renewed, Result, Snapshot, Standing,
};

use crate::listing::foreign;

pub(crate) fn blob(holder: HolderId) -> Vec<u8> {
    holder.as_u128().to_be_bytes().to_vec()
}

/// A time in whole microseconds, never shorter than asked.
pub(crate) fn micros(time: Duration) -> i64 {
    // Above that, sums on the server would overflow; the core allows far less.
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX).min(1 << 60)
}

pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(crate) fn protocol(text: &str) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

/// What a join or a renewal says about the entry of one holder.
pub(crate) enum Found {
    Held(Grant),
    Waiting(Place),
    Missing(Busy),
}

impl Found {
    /// By for whom the answer is, the number of the entry, the microseconds to the earliest lease end ahead, and what was asked.
    pub(crate) fn new(
        (whose, token, retry): (&[u8], Option<i64>, Option<i64>),
        holder: HolderId,
        (lease, waiter_lease): (Duration, Duration),
    ) -> Result<Self> {
        let (holds, retry_after) = (holds(whose, holder)?, retry.map(duration));
        match (holds, token.map(FencingToken::new).transpose()?) {
            (true, Some(token)) => Ok(Self::Held(Grant::new(token, lease))),
            (false, Some(token)) => {
                Ok(Self::Waiting(Place::new(token, waiter_lease).retry_after(retry_after)))
            }
            (false, None) => Ok(Self::Missing(Busy::new(retry_after))),
            (true, None) => Err(protocol("a grant without a number")),
        }
    }

    pub(crate) fn standing(self) -> Standing {
        match self {
            Self::Held(grant) => Standing::Held(grant),
            Self::Waiting(place) => Standing::Waiting(place),
            Self::Missing(busy) => Standing::Busy(busy),
        }
    }

    pub(crate) fn renewed(self) -> Renewed {
        match self {
            Self::Held(grant) => Renewed::Held(grant),
            Self::Waiting(place) => Renewed::Waiting(place),
            Self::Missing(_) => Renewed::NotHeld,
        }
    }
}

/// Whether an entry was removed, which was asked once, or again after the connection broke.
pub(crate) fn left(removed: bool, again: bool) -> Result<Release> {
    match removed {
        true => Ok(Release::Released),
        false if again => {
            let text = "the connection broke; the entry is gone now, but it is not known whether this request took it";
            Err(Error::new(ErrorKind::Unavailable, text))
        }
        false => Ok(Release::NotHeld),
    }
}

/// A line by its entries in order: number, mode, note, microseconds since joining and to the lease's end.
pub(crate) fn snapshot(name: &LockName, line: Vec<(i64, String, String, i64, i64)>) -> Result<Snapshot> {
    let view = |(token, mode, note, age, expires): (_, String, String, _, _)| {
        let note = Note::new(note).map_err(|_| foreign("a malformed note"))?;
        let view = EntryView::new(FencingToken::new(token)?, mode.parse()?, note.as_str());
        Ok(view.age(duration(age)).expires_in(duration(expires)))
    };
    let mut line = line.into_iter().map(view).collect::<Result<Vec<_>>>()?;
    let waiters = line.split_off(holders(line.iter().map(|view| view.mode)));
    Ok(Snapshot::new(name.clone(), line, waiters))
}

/// Whether an answer that says it is for `whose` says that `holder` holds: a grant names its holder; every other answer
/// says a zero and the holder. An answer to somebody else's question, as a connection out of step gives, is none.
///
/// # Errors
/// When it is for nobody, or for somebody else.
fn holds(whose: &[u8], holder: HolderId) -> Result<bool> {
    let own = holder.as_u128().to_be_bytes();
    match whose {
        [0, rest @ ..] if *rest == own => Ok(false),
        _ if *whose == own => Ok(true),
        _ => Err(protocol("the server answered somebody else's question")),
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
