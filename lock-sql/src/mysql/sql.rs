//! The requests: templates from the `sql/` folder, filled in with literals.
//!
//! A verb is one text request of several statements, and a text request has no parameters. So every value becomes a
//! number or a hexadecimal literal, which no content can break out of.

use std::fmt::Write as _;

/// A value in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// Bytes, as a hexadecimal literal.
    Bytes(&'a [u8]),
    /// A digest, as a string of hexadecimal digits.
    Digest(&'a [u8; 32]),
    /// A number.
    Int(i64),
    /// A list of byte strings, separated by commas.
    List(&'a [&'a str]),
    /// A part of a request that was made here.
    Part(&'a str),
}

impl Value<'_> {
    pub(crate) fn write(self, out: &mut String) {
        match self {
            Self::Bytes(bytes) => {
                out.push_str("x'");
                push_hex(out, bytes);
                out.push('\'');
            }
            Self::Digest(digest) => {
                out.push('\'');
                push_hex(out, digest);
                out.push('\'');
            }
            Self::Int(number) => {
                let _ = write!(out, "{number}");
            }
            Self::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    Value::Bytes(item.as_bytes()).write(out);
                }
            }
            Self::Part(text) => out.push_str(text),
        }
    }
}

/// Writes bytes as hexadecimal digits: into a buffer, 32 at a time, which takes a tenth of the instructions of a string that is
/// collected digit by digit.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    for part in bytes.chunks(32) {
        let mut buffer = [0; 64];
        let digits = &mut buffer[..2 * part.len()];
        match hex::encode_to_slice(part, &mut *digits).ok().and_then(|()| str::from_utf8(digits).ok()) {
            Some(text) => out.push_str(text),
            None => out.push_str(&hex::encode(part)),
        }
    }
}

/// One request of the `sql/` folder, cut at its placeholders.
#[derive(Debug)]
pub(crate) struct Template {
    /// A piece of text and the name of the placeholder behind it; the last has none.
    pieces: Vec<(String, &'static str)>,
    /// The bytes of all the texts.
    length: usize,
}

impl Template {
    /// The text of a file, on the tables that begin with `prefix`, a checked identifier.
    pub(crate) fn new(text: &'static str, prefix: &str) -> Self {
        let mut pieces = Vec::new();
        let mut piece = String::new();
        for line in text.lines().filter(|line| !line.starts_with("--")) {
            let mut rest = line.trim_start();
            while let Some(at) = placeholder(rest) {
                let name = &rest[at + 1..];
                let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(name.len());
                piece.push_str(&rest[..at]);
                pieces.push((own_tables(&std::mem::take(&mut piece), prefix), &name[..end]));
                rest = &name[end..];
            }
            piece.push_str(rest);
            piece.push('\n');
        }
        pieces.push((own_tables(&piece, prefix), ""));
        let length = pieces.iter().map(|(text, _)| text.len()).sum();
        Self { pieces, length }
    }

    /// The request with these values. Every placeholder must have one: the tests of this module see to it.
    pub(crate) fn fill(&self, values: &[(&str, Value<'_>)]) -> String {
        // Most values are short.
        let mut out = String::with_capacity(self.length + 256);
        for (text, name) in &self.pieces {
            out.push_str(text);
            if let Some((_, value)) = values.iter().find(|(key, _)| key == name) {
                value.write(&mut out);
            }
        }
        out
    }
}

/// Where the next `:name` begins; `:=` is none.
fn placeholder(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len()).find(|&i| bytes[i] == b':' && bytes.get(i + 1).is_some_and(u8::is_ascii_lowercase))
}

fn own_tables(text: &str, prefix: &str) -> String {
    text.replace("`onelock_", &format!("`{prefix}"))
}

macro_rules! templates {
    ($($name:ident)*) => {
        /// All requests, for one table prefix.
        #[derive(Debug)]
        pub(super) struct Sql {
            /// What the tables' names begin with.
            pub(super) prefix: String,
            /// The statements that make the tables.
            pub(super) migration: String,
            $(pub(super) $name: Template,)*
        }

        impl Sql {
            /// The requests on the tables that begin with `prefix`, a checked identifier.
            pub(super) fn new(prefix: &str) -> Self {
                let migration = include_str!("../../migrations/mysql/0001_line.sql");
                Self {
                    prefix: prefix.to_owned(),
                    migration: Template::new(migration, prefix).fill(&[]),
                    $($name: Template::new(include_str!(concat!("sql/", stringify!($name), ".sql")), prefix),)*
                }
            }
        }
    };
}

templates! {
    acquire busy check disown evict inspect list poll raise release renew session sweep tables variables version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_or_hexadecimal() {
        let sql = Sql::new("p_");
        let text = sql.evict.fill(&[("name", Value::Bytes(b"a'; DROP TABLE x")), ("number", Value::Int(-7))]);
        assert!(text.contains("x'61273b2044524f50205441424c452078'"), "{text}");
        assert!(text.contains("number = -7\n") && text.contains("`p_line`"), "{text}");
        assert!(!text.contains("DROP") && !text.contains("onelock") && !text.contains("--"), "{text}");
        let list = sql.tables.fill(&[("tables", Value::List(&["a", "b"]))]);
        assert!(list.contains("IN (x'61',x'62')"), "{list}");
        assert!(sql.migration.contains("`p_store`") && !sql.migration.contains("onelock_"));
    }

    #[test]
    fn digits_of_any_length_are_those_of_the_bytes() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in [0, 1, 31, 32, 33, 64, 100, 256] {
            let mut text = String::new();
            push_hex(&mut text, &bytes[..length]);
            assert_eq!(text, hex::encode(&bytes[..length]));
        }
    }

    #[test]
    fn placeholders_are_those_of_the_comment() {
        let sql = Sql::new("onelock_");
        let names = |template: &Template| {
            let mut names: Vec<_> = template.pieces.iter().map(|p| p.1).filter(|n| !n.is_empty()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let acquire = [
            "busy",
            "epoch",
            "holder",
            "lease",
            "mode",
            "name",
            "note",
            "queue",
            "room",
            "waiter_lease",
            "weight",
        ];
        assert_eq!(names(&sql.acquire), acquire);
        assert_eq!(names(&sql.release), ["holder", "name"]);
        assert_eq!(names(&sql.evict), ["name", "number"]);
        assert_eq!(names(&sql.disown), ["name", "nobody", "number"]);
        assert_eq!(names(&sql.raise), ["holder", "name", "number"]);
        assert_eq!(names(&sql.renew), ["buckets", "due", "names"]);
        assert_eq!(names(&sql.poll), ["holders"]);
        assert_eq!((names(&sql.inspect), names(&sql.busy)), (vec!["name"], vec!["name"]));
        assert_eq!(names(&sql.list), ["after", "from", "limit", "until"]);
        assert_eq!(names(&sql.session), ["lock_wait"]);
        assert_eq!(names(&sql.tables), ["tables"]);
        for none in [&sql.check, &sql.sweep, &sql.variables, &sql.version] {
            assert!(names(none).is_empty());
        }
    }
}
