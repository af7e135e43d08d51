//! A row as a line of the screen.

use std::time::Duration;

use console::{Alignment, pad_str, truncate_str};

use super::rows::Row;
use crate::output::clean;

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

/// `text` in exactly `width` columns, without what would steer the terminal.
pub(super) fn fit(text: &str, width: usize) -> String {
    // The last column says that there was more; a wide letter that does not fit leaves one empty.
    let text = if width == 0 { String::new() } else { clean(text) };
    pad_str(&truncate_str(&text, width, "…"), width, Alignment::Left, None).into_owned()
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
    use super::super::rows::tests::row;
    use super::*;

    #[test]
    fn a_row_has_the_width_of_the_screen() {
        let wide = row(&"名".repeat(60), 1_000, 86_400 * 30, 59);
        for width in [0, 1, 20, 33, 80, 200] {
            let text = drawn(&wide, width);
            assert_eq!(console::measure_text_width(&text), width, "{text}");
        }
        let text = drawn(&row("orders/42", 3, 192, 7_261), 80);
        assert_eq!(text.trim_end(), "      3    3m12s    2h01m  orders/42                  me@host:7261");
        assert!(head(80).starts_with("WAITERS   OLDEST      AGE  NAME "));
        assert_eq!(fit("abcdef", 4), "abc…");
    }
}
