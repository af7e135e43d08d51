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
    /// A part of a request that was made here.
    Part(&'a str),
}

impl Value<'_> {
    pub(crate) fn write(self, out: &mut String) {
        // Writing to a string does not fail.
        let _ = match self {
            Self::Bytes(bytes) => write!(out, "x'{}'", hex::encode(bytes)),
            Self::Digest(digest) => write!(out, "'{}'", hex::encode(digest)),
            Self::Int(number) => write!(out, "{number}"),
            Self::Part(text) => out.write_str(text),
        };
    }
}

/// Byte strings, separated by commas.
pub(super) fn list<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> String {
    let literals: Vec<_> = items.into_iter().map(|item| format!("x'{}'", hex::encode(item))).collect();
    literals.join(",")
}

/// One request of the `sql/` folder, cut at its placeholders.
#[derive(Debug)]
pub(crate) struct Template {
    /// A piece of text and the name of the placeholder behind it; the last has none.
    pieces: Vec<(String, &'static str)>,
}

impl Template {
    /// The text of a file, on the tables that begin with `prefix`, a checked identifier.
    pub(crate) fn new(text: &'static str, prefix: &str) -> Self {
        let own = |text: &str| text.replace("`onelock_", &format!("`{prefix}"));
        let (mut pieces, mut piece) = (Vec::new(), String::new());
        for line in text.lines().filter(|line| !line.starts_with("--")) {
            for (at, part) in line.trim_start().split(':').enumerate() {
                let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
                // A name begins with a letter: `:=` is none.
                if at > 0 && end > 0 {
                    pieces.push((own(&std::mem::take(&mut piece)), &part[..end]));
                    piece.push_str(&part[end..]);
                } else {
                    piece.push_str(if at > 0 { ":" } else { "" });
                    piece.push_str(part);
                }
            }
            piece.push('\n');
        }
        pieces.push((own(&piece), ""));
        Self { pieces }
    }

    /// The request with these values. Every placeholder must have one: the tests of this module see to it.
    pub(crate) fn fill(&self, values: &[(&str, Value<'_>)]) -> String {
        let mut out = String::with_capacity(4096);
        for (text, name) in &self.pieces {
            out.push_str(text);
            if let Some((_, value)) = values.iter().find(|(key, _)| key == name) {
                value.write(&mut out);
            }
        }
        out
    }
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
    acquire busy check disown due evict inspect list poll raise release renew session sweep tables variables version
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
        let list = sql.tables.fill(&[("tables", Value::Part(&list(["a", "b"])))]);
        assert!(list.contains("IN (x'61',x'62')"), "{list}");
        assert!(sql.migration.contains("`p_store`") && !sql.migration.contains("onelock_"));
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
        assert_eq!(names(&sql.due), ["holder", "item", "lease", "name", "waiter_lease"]);
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
