//! What a client writes down.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use onelock_core::toolkit::Mutex;
use serde::{Deserialize, Serialize};

use crate::verdict::{Context as _, Verdict};

/// One event. Times are nanoseconds of the boot clock; `hold` numbers the holds of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It holds.
    Held {
        /// The number of the hold.
        hold: u64,
        /// Which lock.
        lock: u32,
        /// The mode as text.
        mode: String,
        /// The fencing token; 0 where there is none.
        token: i64,
        /// When it asked.
        asked: u64,
        /// When it knew.
        from: u64,
    },
    /// It still held at this time: the client asked, after it had looked at the clock.
    Seen {
        /// The number of the hold.
        hold: u64,
        /// When.
        at: u64,
    },
    /// The hold is over.
    Over {
        /// The number of the hold.
        hold: u64,
        /// Until when it was certain.
        until: u64,
        /// How it ended.
        how: How,
    },
    /// Work under [`Guard::run`](onelock_core::client::guard::Guard::run) has ended: no part of it comes after this.
    Worked {
        /// The number of the hold.
        hold: u64,
        /// When the client's last deadline was.
        deadline: u64,
        /// When `run` returned.
        until: u64,
        /// Whether the end of the hold stopped it.
        stopped: bool,
    },
    /// The loss of a hold was told.
    Told {
        /// When the deadline had passed.
        deadline: u64,
        /// When the client was told.
        at: u64,
    },
    /// The process did not run, or its runtime was blocked on purpose.
    Still {
        /// Since when, at the latest.
        from: u64,
        /// Until when, at the earliest.
        to: u64,
    },
    /// A leader was no more leader when its work ended.
    Deposed,
    /// An observer of the election saw another leader, by its token; 0 for nobody.
    Led {
        /// The token.
        token: i64,
    },
    /// Calls to the store since the last such event.
    Calls {
        /// All.
        calls: u64,
        /// Those whose failure left open whether the store had acted.
        unclear: u64,
    },
    /// An acquire was dropped under way.
    Cut,
    /// The resource was written to.
    Wrote {
        /// What was written.
        item: u64,
        /// Whether the resource that checks tokens took it.
        taken: bool,
    },
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Given back, and the store confirmed it.
    Released,
    /// Lost before it was given back.
    Lost,
    /// The guard was dropped.
    Dropped,
    /// The release failed otherwise: given back in the background.
    Unclear,
}

/// What a line with a finished cycle has in it.
pub(super) const RELEASED: &str = r#""how":"released""#;
/// What a line with work that the end of its hold stopped has in it.
pub(super) const STOPPED: &str = r#""stopped":true"#;
/// The same of a leader's.
pub(super) const DEPOSED: &str = r#""event":"deposed""#;

/// A file of events, written line by line so that a killed process leaves all but its last.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    /// Goes on with the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Verdict<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Self(Mutex::new(file.context("a journal")?)))
    }

    /// Writes one event.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, event: &Event) -> Verdict {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        Ok(self.0.lock().write_all(&line)?)
    }
}

/// Reads a file of events. A line that a killed process could not finish is passed over, if it is the last one it wrote.
///
/// # Errors
/// When the file cannot be read or has anything else in it.
pub fn read(path: &Path) -> Verdict<Vec<Event>> {
    let text = std::fs::read_to_string(path).context("a journal")?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole].lines().map(|line| serde_json::from_str(line).context(line)).collect()
}
