//! Numbers for people. Between a number and its unit a line does not break.

/// A number with about three digits that matter, thousands apart.
pub(super) fn plain(value: f64) -> String {
    let size = value.abs();
    let places = match size {
        _ if !size.is_finite() => return "–".into(),
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.0995 => 3,
        _ => 4,
    };
    let mut digits = format!("{value:.places$}");
    if digits.contains('.') {
        digits.truncate(digits.trim_end_matches('0').trim_end_matches('.').len());
    }
    if digits == "-0" {
        digits = "0".into();
    }
    let whole = digits.find('.').unwrap_or(digits.len());
    let first = usize::from(digits.starts_with('-'));
    let mut at = whole;
    while at > first + 3 {
        at -= 3;
        // Narrow and not a place to break the line.
        digits.insert(at, '\u{202f}');
    }
    digits
}

/// A value in the largest of its units in which it is at least one; each is `base` of the one before it.
fn scaled(mut value: f64, base: f64, smallest: &str, larger: &[&str]) -> String {
    let mut unit = smallest;
    for next in larger {
        // What rounds to one of the next unit is written in that.
        if value.abs() < base * 0.9995 {
            break;
        }
        (value, unit) = (value / base, next);
    }
    format!("{}{unit}", plain(value))
}

/// A time given in microseconds.
pub(super) fn time(us: f64) -> String {
    if us == 0.0 {
        return "0".into();
    }
    scaled(us * 1e3, 1e3, "\u{a0}ns", &["\u{a0}µs", "\u{a0}ms", "\u{a0}s"])
}

/// A rate at an axis, where there is little room.
pub(super) fn short(value: f64) -> String {
    scaled(value, 1e3, "", &["k", "M"])
}

/// A share of one.
pub(super) fn share(value: f64) -> String {
    format!("{}\u{a0}%", plain(value * 100.0))
}

/// A size in bytes.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, "\u{a0}B", &["\u{a0}KiB", "\u{a0}MiB", "\u{a0}GiB"])
}

/// A ratio.
pub(super) fn times(value: f64) -> String {
    match value {
        v if v.is_finite() && v < 9.995 => format!("{v:.2}×"),
        v => format!("{}×", plain(v)),
    }
}

/// The character, or a sign for one that may not stand in a page at all.
pub(super) fn printable(c: char) -> char {
    match c {
        '\u{0}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c => c,
    }
}

/// As text of a Markdown table's cell.
pub(super) fn cell(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '|' | '\\' | '`' | '*' | '[' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
