//! What is seen of a store.
//!
//! The JSON of each is a promise: fields are added, never renamed or removed. Tokens are strings, because many readers
//! keep only 53 bits of a number; times are whole milliseconds; what a store does not know is `null`.

pub(crate) mod deadlocks;
pub(crate) mod leader;
mod lines;
pub(crate) mod list;
pub(crate) mod ping;
pub(crate) mod status;
pub(crate) mod stores;
pub(crate) mod top;
pub(crate) mod watch;

use std::time::{Duration, SystemTime};

use onelock::{EntryView, Error, FencingToken, Mode};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::say;

/// An entry of a line.
#[derive(Serialize)]
struct EntryJson<'a> {
    /// None of a holder that is not of onelock.
    token: Option<FencingToken>,
    mode: &'static str,
    /// Of a permit: how many there are.
    limit: Option<u32>,
    /// Of a permit: how many of them it takes.
    weight: Option<u32>,
    note: &'a str,
    age_ms: Option<u64>,
    expires_in_ms: Option<u64>,
}

impl<'a> From<&'a EntryView> for EntryJson<'a> {
    fn from(entry: &'a EntryView) -> Self {
        let (mode, limit, weight) = words(entry.mode);
        Self {
            token: Some(entry.token),
            mode,
            limit,
            weight,
            note: &entry.note,
            age_ms: entry.age.map(ms),
            expires_in_ms: entry.expires_in.map(ms),
        }
    }
}

/// What is said of a holder that is not of onelock, where others have their note.
const FOREIGN: &str = "not onelock";

impl EntryJson<'_> {
    fn foreign(expires_in: Option<Duration>) -> Self {
        let (mode, limit, weight) = words(Mode::Exclusive);
        Self {
            token: None,
            mode,
            limit,
            weight,
            note: FOREIGN,
            age_ms: None,
            expires_in_ms: expires_in.map(ms),
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn words(mode: Mode) -> (&'static str, Option<u32>, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None, None),
        Mode::Shared => ("shared", None, None),
        Mode::Permit { limit, weight } => ("permit", Some(limit.get()), Some(weight.get())),
    }
}

/// The mode in one word.
fn mode_word(mode: Mode) -> String {
    match words(mode) {
        (mode, Some(limit), Some(weight @ 2..)) => format!("{mode}/{limit}w{weight}"),
        (mode, Some(limit), _) => format!("{mode}/{limit}"),
        (mode, None, _) => mode.into(),
    }
}

/// A moment of the calendar, in UTC.
fn moment(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

/// A store that is away while it is looked at again and again: said once for each outage.
#[derive(Default)]
struct Away(bool);

impl Away {
    /// What was seen; `None` while the store is away.
    ///
    /// # Errors
    /// One that no retry mends.
    fn over<T>(&mut self, seen: Result<T, Error>) -> Result<Option<T>, Failure> {
        match seen {
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut self.0, true) {
                    say(format_args!("waiting for the store: {error}"));
                }
                Ok(None)
            }
            seen => {
                self.0 = false;
                Ok(Some(seen?))
            }
        }
    }
}
