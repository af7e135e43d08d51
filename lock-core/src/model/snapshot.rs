//! What people and programs see of a line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::error::{Error, ErrorKind, Result};
use crate::model::mode::Mode;
use crate::model::name::LockName;
use crate::model::token::FencingToken;

/// The line of one name at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The name.
    pub name: LockName,
    /// The entries that hold, in line order.
    pub holders: Vec<EntryView>,
    /// The entries that wait, in line order.
    pub waiters: Vec<EntryView>,
    /// Who holds it as a user of another library that shares the store's layout: no number of ours orders it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<ForeignView>,
}

impl Snapshot {
    /// The line of a name nobody asked for.
    #[must_use]
    pub fn empty(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), foreign: Vec::new() }
    }

    /// Whether anybody holds it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || !self.foreign.is_empty()
    }
}

/// A holder that is not of this library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignView {
    /// How long it lasts yet; `None` where it has no end.
    #[serde(with = "crate::toolkit::human_time::option", default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

/// One entry of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryView {
    /// Its number.
    pub token: FencingToken,
    /// How it shares the lock.
    pub mode: Mode,
    /// The holder's label.
    pub note: String,
    /// How long ago it joined the line, if the store knows.
    #[serde(with = "crate::toolkit::human_time::option", default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Duration>,
    /// How long its lease lasts yet (with the lock-delay), if the store knows.
    #[serde(with = "crate::toolkit::human_time::option", default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

/// Which part of a listing to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where the page before this one ended: [`Listing::next`].
    pub cursor: Option<String>,
    /// About how many names at most, from 1. A store may give fewer, even none, while `next` is there.
    pub limit: usize,
}

impl Page {
    /// The most names a page may ask for.
    pub const MAX: usize = 10_000;

    /// The first page of about `limit` names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when `limit` is 0 or above [`Page::MAX`].
    pub fn first(limit: usize) -> Result<Self> {
        if (1..=Self::MAX).contains(&limit) {
            Ok(Self { cursor: None, limit })
        } else {
            let text = format!("a page has 1 to {} names, not {limit}", Self::MAX);
            Err(Error::new(ErrorKind::InvalidConfig, text))
        }
    }

    /// The page after the one that ended with `cursor`.
    #[must_use]
    pub fn after(self, cursor: String) -> Self {
        Self { cursor: Some(cursor), ..self }
    }
}

/// A page of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The names, each once within a listing.
    pub names: Vec<ListedName>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedName {
    /// The name.
    pub name: LockName,
    /// How many entries hold.
    pub holders: usize,
    /// How many entries wait.
    pub waiters: usize,
}
