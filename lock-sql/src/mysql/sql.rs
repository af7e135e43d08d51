//! The requests: templates from the `sql/` folder, filled in with literals.
//!
//! A verb is one text request of several statements, and a text request has no parameters. So every value becomes a
//! number or a hexadecimal literal, which no content can break out of.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A value in a request.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Bytes, as a hexadecimal literal.
    Bytes(Vec<u8>),
    /// A digest, as a string of hexadecimal digits.
    Digest([u8; 32]),
    /// A number.
    Int(i64),
    /// A part of a request that was made here.
    Part(String),
}

impl Value {
    pub(crate) fn write(&self, out: &mut String) {
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

/// A request, and the values for its question marks in their order.
pub(super) struct Call {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Call {
    /// A request of the `sql/` folder, with its bytes and numbers apart, on the tables that begin with `prefix`, a checked
    /// identifier. Every placeholder must have a value.
    pub(super) fn new(text: &str, prefix: &str, values: &[(&str, Value)]) -> Self {
        let text: Cow<'_, str> = match prefix {
            // As the files have it, and most users.
            "onelock_" => text.into(),
            other => text.replace("`onelock_", &format!("`{other}")).into(),
        };
        let (mut sql, mut apart) = (String::with_capacity(2 * text.len()), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with("--")) {
            for (at, part) in line.trim_start().split(':').enumerate() {
                let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
                let (name, rest) = part.split_at(if at > 0 { end } else { 0 });
                match values.iter().find(|(key, _)| *key == name) {
                    Some((_, value @ (Value::Bytes(_) | Value::Int(_)))) => {
                        apart.push(value.clone());
                        sql.push('?');
                    }
                    Some((_, value)) => value.write(&mut sql),
                    None => {
                        debug_assert!(name.is_empty(), "there is no value for :{name}");
                        // A name begins with a letter: `:=` is none.
                        sql.push_str(if at > 0 { ":" } else { "" });
                    }
                }
                sql.push_str(rest);
            }
            sql.push('\n');
        }
        Self { sql, values: apart }
    }

    /// With its values in it.
    pub(super) fn text(&self) -> String {
        let mut parts = self.sql.splitn(self.values.len() + 1, '?');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for (value, part) in self.values.iter().zip(parts) {
            value.write(&mut out);
            out.push_str(part);
        }
        out
    }
}

/// A request with all its values in it.
pub(crate) fn fill(text: &str, prefix: &str, values: &[(&str, Value)]) -> String {
    Call::new(text, prefix, values).text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_or_hexadecimal() {
        let values = [("name", Value::Bytes(b"a'; DROP TABLE x".to_vec())), ("number", Value::Int(-7))];
        let text = fill(include_str!("sql/evict.sql"), "p_", &values);
        assert!(text.contains("x'61273b2044524f50205441424c452078'"), "{text}");
        assert!(text.contains("number = -7\n") && text.contains("`p_line`"), "{text}");
        assert!(!text.contains("DROP") && !text.contains("onelock") && !text.contains("--"), "{text}");
        let names = list(["a", "b"]);
        let list = fill(include_str!("sql/tables.sql"), "p_", &[("tables", Value::Part(names))]);
        assert!(list.contains("IN (x'61',x'62')"), "{list}");
        let migration = fill(include_str!("schema/0001.sql"), "p_", &[]);
        assert!(migration.contains("`p_store`") && !migration.contains("onelock_"));
        assert!(fill(include_str!("sql/sweep.sql"), "p_", &[]).contains("SET @now := "));
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "only looked at while debugging")]
    #[should_panic(expected = "there is no value for :number")]
    fn a_placeholder_without_a_value_is_a_mistake() {
        fill(include_str!("sql/evict.sql"), "p_", &[("name", Value::Int(1))]);
    }
}
