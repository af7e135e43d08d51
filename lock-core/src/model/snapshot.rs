//! What people and programs see of a line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::error::{Error, ErrorKind, Result};
use crate::model::mode::Mode;
use crate::model::name::LockName;
use crate::model::token::FencingToken;

/// The line of one name at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The name.
    pub name: LockName,
    /// The entries that hold, in line order.
    pub holders: Vec<EntryView>,
    /// The entries that wait, in line order.
    pub waiters: Vec<EntryView>,
    /// Holders by another library that shares the store's layout: no number of ours orders them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<ForeignView>,
}

impl Snapshot {
    /// The line of these entries, and nobody else.
    #[must_use]
    pub fn new(name: LockName, holders: Vec<EntryView>, waiters: Vec<EntryView>) -> Self {
        Self { name, holders, waiters, foreign: Vec::new() }
    }

    /// The line of a name nobody asked for.
    #[must_use]
    pub fn empty(name: LockName) -> Self {
        Self::new(name, Vec::new(), Vec::new())
    }

    /// Whether anybody holds it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || !self.foreign.is_empty()
    }
}

/// A holder that is not of this library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ForeignView {
    /// How long it lasts yet; `None` where it has no end.
    #[serde(with = "crate::toolkit::human_time::option", default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

impl ForeignView {
    /// One that lasts so long yet; `None` where it has no end.
    #[must_use]
    pub fn new(expires_in: Option<Duration>) -> Self {
        Self { expires_in }
    }
}

/// One entry of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
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

impl EntryView {
    /// An entry of which no times are known.
    pub fn new(token: FencingToken, mode: Mode, note: impl Into<String>) -> Self {
        Self { token, mode, note: note.into(), age: None, expires_in: None }
    }

    /// One that joined so long ago.
    pub fn age(self, age: Duration) -> Self {
        Self { age: Some(age), ..self }
    }

    /// One whose lease lasts so long yet.
    pub fn expires_in(self, left: Duration) -> Self {
        Self { expires_in: Some(left), ..self }
    }
}

/// Which part of a listing to give.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct Listing {
    /// The names, each once within a listing.
    pub names: Vec<ListedName>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

impl Listing {
    /// These names, and where the next page begins.
    #[must_use]
    pub fn new(names: Vec<ListedName>, next: Option<String>) -> Self {
        Self { names, next }
    }
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedName {
    /// The name.
    pub name: LockName,
    /// How many entries hold.
    pub holders: usize,
    /// How many entries wait.
    pub waiters: usize,
}

impl ListedName {
    /// A name with so many entries.
    #[must_use]
    pub fn new(name: LockName, holders: usize, waiters: usize) -> Self {
        Self { name, holders, waiters }
    }
}
