//! What is printed: tables for people, JSON for programs, and nothing that breaks on a closed pipe.

use std::fmt;
use std::io::{self, Write as _};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
#[cfg(unix)]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::exit::Failure;

/// A line on stderr, marked with the program's name. A closed stderr is nobody's problem.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    say_all("", &[text.to_string()]);
}

/// Several lines in one write: other programs may write to the same place. They come after `before`.
pub(crate) fn say_all(before: &str, lines: &[String]) {
    put(&lines.iter().fold(before.to_owned(), |text, line| text + "onelock: " + &clean(line) + "\n"), 1);
}

/// Writes to stderr, unless nobody reads there for so many seconds: that write would not end, and this thread renews the
/// lease.
#[cfg_attr(not(unix), expect(unused_variables))]
pub(crate) fn put(text: &str, tv_sec: i64) {
    let mut stderr = io::stderr().lock();
    #[cfg(unix)]
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec { tv_sec, tv_nsec: 0 })) == Ok(0) {
        return;
    }
    let _ = stderr.write_all(text.as_bytes());
}

/// Ends when nobody reads stdout any more: who prints only what changes would learn of that at the next change.
pub(crate) async fn reader_left() -> Failure {
    #[cfg(unix)]
    while poll(&mut [PollFd::new(&io::stdout(), PollFlags::empty())], Some(&Timespec::default())) != Ok(1) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    #[cfg(not(unix))]
    std::future::pending::<()>().await;
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// A line on stdout.
pub(crate) fn line(text: fmt::Arguments<'_>) -> io::Result<()> {
    io::stdout().lock().write_all(format!("{text}\n").as_bytes())
}

/// One JSON value on one line of stdout.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value)?;
    line(format_args!("{text}"))
}

/// A table without rules or colours, so that it can be cut and grepped.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    table.add_rows(rows.into_iter().map(|row| row.iter().map(|cell| clean(cell)).collect::<Vec<_>>()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2)).set_cell_alignment(CellAlignment::Left);
    }
    let mut out = io::stdout().lock();
    for row in table.lines() {
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}

/// A time as people say it, to the second, or to the millisecond below ten of them.
pub(crate) fn human(time: Duration) -> String {
    let millis = if time < Duration::from_secs(10) { time.subsec_millis() } else { 0 };
    humantime::format_duration(Duration::new(time.as_secs(), millis * 1_000_000)).to_string()
}

/// Text from elsewhere without what would steer a terminal, or turn the rest of a line round.
pub(crate) fn clean(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_a_store_steers_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\n"), "a\u{FFFD}[31mb\u{FFFD}");
        assert_eq!(clean("me\u{202e}you \u{9b}\u{2067}ü"), "me\u{FFFD}you \u{FFFD}\u{FFFD}ü");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(human(Duration::from_micros(1_234_567)), "1s 234ms");
        assert_eq!(human(Duration::from_millis(192_345)), "3m 12s");
        assert_eq!(human(Duration::ZERO), "0s");
    }
}
