//! The rows of `top`.

use std::cmp::Reverse;
use std::time::Duration;

use clap::ValueEnum;
use onelock::{FencingToken, Snapshot};
use serde::Serialize;

use crate::show::lines::Illegible;
use crate::show::{FOREIGN, millis};

/// A name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) holders: usize,
    /// The first holder's label.
    pub(super) holder: String,
    /// The first holder's token; none of a holder that is not of onelock.
    pub(super) token: Option<FencingToken>,
    /// How long ago the first holder joined the line.
    #[serde(rename = "age_ms", serialize_with = "millis")]
    pub(super) age: Option<Duration>,
    pub(super) waiters: usize,
    /// How long ago the first waiter joined the line.
    #[serde(rename = "oldest_wait_ms", serialize_with = "millis")]
    pub(super) oldest: Option<Duration>,
}

impl From<Snapshot> for Row {
    fn from(line: Snapshot) -> Self {
        let first = line.holders.first();
        let holder = match first {
            Some(entry) if entry.note.is_empty() => "?".into(),
            Some(entry) => entry.note.clone(),
            None if !line.foreign.is_empty() => FOREIGN.into(),
            None => "-".into(),
        };
        Self {
            token: first.map(|entry| entry.token),
            holder,
            holders: line.holders.len() + line.foreign.len(),
            age: first.and_then(|entry| entry.age),
            waiters: line.waiters.len(),
            oldest: line.waiters.iter().filter_map(|entry| entry.age).max(),
            name: line.name.to_string(),
        }
    }
}

/// What the listing says, and why there is no more.
impl From<Illegible> for Row {
    fn from((listed, error): Illegible) -> Self {
        let (holders, waiters) = (listed.holders, listed.waiters);
        Self { holder: error.to_string(), holders, waiters, ..Snapshot::empty(listed.name).into() }
    }
}

impl Row {
    /// The label, and how many more hold.
    pub(super) fn who(&self) -> String {
        match self.holders {
            0 | 1 => self.holder.clone(),
            n => format!("{} +{}", self.holder, n - 1),
        }
    }
}

/// What comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// The most waiters.
    #[default]
    Waiters,
    /// The longest wait.
    Oldest,
    /// The oldest holder.
    Age,
    /// Names in order.
    Name,
}

/// Those rows whose name or holder has `filter` in it, in order.
pub(super) fn arranged(mut rows: Vec<Row>, sort: Sort, filter: &str) -> Vec<Row> {
    rows.retain(|row| row.name.contains(filter) || row.holder.contains(filter));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    match sort {
        Sort::Waiters => rows.sort_by_key(|row| Reverse((row.waiters, row.oldest))),
        Sort::Oldest => rows.sort_by_key(|row| Reverse((row.oldest, row.waiters))),
        Sort::Age => rows.sort_by_key(|row| Reverse(row.age)),
        Sort::Name => {}
    }
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row(name: &str, waiters: usize, oldest: u64, age: u64) -> Row {
        let (token, holder) = (FencingToken::new(7).ok(), format!("me@host:{age}"));
        let (oldest, age) = (Some(Duration::from_secs(oldest)), Some(Duration::from_secs(age)));
        Row { name: name.into(), token, holder, holders: 1, age, waiters, oldest }
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let rows = vec![row("c", 1, 50, 9), row("a", 2, 5, 70), row("b", 2, 6, 3)];
        let order = |sort, filter| -> String {
            arranged(rows.clone(), sort, filter).into_iter().map(|row| row.name).collect()
        };
        assert_eq!(order(Sort::Waiters, ""), "bac");
        assert_eq!(order(Sort::Oldest, ""), "cba");
        assert_eq!(order(Sort::Age, ""), "acb");
        assert_eq!(order(Sort::Name, ""), "abc");
        assert_eq!(order(Sort::Name, "host:7"), "a");
        assert_eq!(order(Sort::Name, "nobody"), "");
    }
}
