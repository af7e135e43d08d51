//! The rows of `top`, and how they are put on a screen: text in, text out.

use std::cmp::Reverse;
use std::time::Duration;

use clap::ValueEnum;
use onelock::{FencingToken, Snapshot};
use unicode_width::UnicodeWidthChar as _;

use crate::output::clean;
use crate::show::FOREIGN;

/// A name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    /// The first holder's token; none of a holder that is not of onelock.
    pub(super) token: Option<FencingToken>,
    /// The first holder's label.
    pub(super) holder: String,
    pub(super) holders: usize,
    /// How long ago the first holder joined the line.
    pub(super) age: Option<Duration>,
    pub(super) waiters: usize,
    /// How long ago the first waiter joined the line.
    pub(super) oldest: Option<Duration>,
}

impl From<Snapshot> for Row {
    fn from(line: Snapshot) -> Self {
        let first = line.holders.first();
        let holder = match first {
            Some(entry) if entry.note.is_empty() => "?".into(),
            Some(entry) => clean(&entry.note),
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
            name: clean(line.name.as_str()),
        }
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

    fn has(&self, filter: &str) -> bool {
        self.name.contains(filter) || self.holder.contains(filter)
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

impl Sort {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Waiters => Self::Oldest,
            Self::Oldest => Self::Age,
            Self::Age => Self::Name,
            Self::Name => Self::Waiters,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::Oldest => "oldest",
            Self::Age => "age",
            Self::Name => "name",
        }
    }
}

/// Those rows whose name or holder has `filter` in it, in order.
pub(super) fn arranged(mut rows: Vec<Row>, sort: Sort, filter: &str) -> Vec<Row> {
    rows.retain(|row| row.has(filter));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    match sort {
        Sort::Waiters => rows.sort_by_key(|row| Reverse((row.waiters, row.oldest))),
        Sort::Oldest => rows.sort_by_key(|row| Reverse((row.oldest, row.waiters))),
        Sort::Age => rows.sort_by_key(|row| Reverse(row.age)),
        Sort::Name => {}
    }
    rows
}

/// The columns' heads, cut to `width`.
pub(super) fn head(width: usize) -> String {
    columns(["WAITERS", "OLDEST", "AGE", "NAME", "HOLDER"], width)
}

/// A row, cut to `width`.
pub(super) fn drawn(row: &Row, width: usize) -> String {
    let time = |time: Option<Duration>| time.map_or_else(|| "-".into(), short);
    let age = if row.holders > 0 && row.age.is_none() { "?".into() } else { time(row.age) };
    columns([&row.waiters.to_string(), &time(row.oldest), &age, &row.name, &row.who()], width)
}

fn columns([waiters, oldest, age, name, holder]: [&str; 5], width: usize) -> String {
    const NUMBERS: usize = 7 + 2 + 7 + 2 + 7 + 2;
    let names = width.saturating_sub(NUMBERS + 2);
    let (name, holder) = (fit(name, names / 2), fit(holder, names - names / 2));
    fit(&format!("{waiters:>7}  {oldest:>7}  {age:>7}  {name}  {holder}"), width)
}

/// `text` in exactly `width` columns.
pub(super) fn fit(text: &str, width: usize) -> String {
    let (mut out, mut used) = (String::new(), 0);
    let whole: usize = text.chars().filter_map(|c| c.width()).sum();
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        // The last column says that there was more.
        if used + wide > width.saturating_sub(usize::from(whole > width)) {
            break;
        }
        out.push(c);
        used += wide;
    }
    if whole > width && used < width {
        out.push('…');
        used += 1;
    }
    out.push_str(&" ".repeat(width - used));
    out
}

/// A time in at most seven characters.
fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, waiters: usize, oldest: u64, age: u64) -> Row {
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

    #[test]
    fn a_row_has_the_width_of_the_screen() {
        let wide = row(&"名".repeat(60), 1_000, 86_400 * 30, 59);
        for width in [0, 1, 20, 33, 80, 200] {
            let text = drawn(&wide, width);
            assert_eq!(text.chars().filter_map(|c| c.width()).sum::<usize>(), width, "{text}");
        }
        let text = drawn(&row("orders/42", 3, 192, 7_261), 80);
        assert_eq!(text.trim_end(), "      3    3m12s    2h01m  orders/42                  me@host:7261");
        assert!(head(80).starts_with("WAITERS   OLDEST      AGE  NAME "));
        assert_eq!(fit("abcdef", 4), "abc…");
    }
}
