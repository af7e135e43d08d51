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

use onelock::{EntryView, FencingToken, ForeignView, Mode, Snapshot};
use serde::{Serialize, Serializer};

/// What is said of a holder that is not of onelock, where others have their note.
const FOREIGN: &str = "not onelock";

/// An entry of a line, as it is told.
#[derive(Clone, Debug, Default, Serialize)]
struct Entry {
    /// None of a holder that is not of onelock.
    token: Option<FencingToken>,
    mode: &'static str,
    /// Of a permit: how many there are.
    limit: Option<u32>,
    /// Of a permit: how many of them it takes.
    weight: Option<u32>,
    note: String,
    #[serde(rename = "age_ms", serialize_with = "millis")]
    age: Option<Duration>,
    #[serde(rename = "expires_in_ms", serialize_with = "millis")]
    expires_in: Option<Duration>,
}

impl Entry {
    fn new(of: EntryView) -> Self {
        let (mode, limit, weight) = match of.mode {
            Mode::Exclusive => ("exclusive", None, None),
            Mode::Shared => ("shared", None, None),
            Mode::Permit { limit, weight } => ("permit", Some(limit.get()), Some(weight.get())),
        };
        let EntryView { token, note, age, expires_in, .. } = of;
        Self { token: Some(token), mode, limit, weight, note, age, expires_in }
    }

    fn foreign(of: ForeignView) -> Self {
        Self { mode: "exclusive", note: FOREIGN.into(), expires_in: of.expires_in, ..Self::default() }
    }

    /// Who holds a line, those that are not of onelock first, and who waits.
    fn of(line: Snapshot) -> (Vec<Self>, Vec<Self>) {
        let foreign = line.foreign.into_iter().map(Self::foreign);
        let holders = foreign.chain(line.holders.into_iter().map(Self::new)).collect();
        (holders, line.waiters.into_iter().map(Self::new).collect())
    }

    /// The mode in one word.
    fn word(&self) -> String {
        let mode = self.mode;
        match (self.limit, self.weight) {
            (Some(limit), Some(weight @ 2..)) => format!("{mode}/{limit}w{weight}"),
            (Some(limit), _) => format!("{mode}/{limit}"),
            (None, _) => mode.into(),
        }
    }
}

/// A time as whole milliseconds.
fn millis<S: Serializer>(time: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(out)
}

/// A moment of the calendar, in UTC.
fn moment(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}
