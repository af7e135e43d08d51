//! A call of one of the functions, and the two ways to send it: by a prepared statement where the connection is one
//! session of the server, and spelled out in one message where it may be another one for each transaction.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::HolderId;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Arguments as _, AssertSqlSafe, Postgres};

/// The functions need it, whatever the session's default is; it lasts for the one transaction of its message.
const LEVEL: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ";

/// A statement with `$1`, `$2`, … in it, and the function that it calls.
pub(super) struct Verb {
    pub(super) function: &'static str,
    /// To be prepared.
    pub(super) sql: Arc<str>,
    /// To be spelled out, where it is not the same: what is more than one transaction cannot be a part of a message.
    pub(super) in_one: Option<Arc<str>>,
    /// Whether leases depend on it: then it may use the connection in reserve.
    pub(super) urgent: bool,
    /// Whether its answer may have more than one row. The driver takes half as many instructions again to collect them.
    pub(super) many: bool,
}

/// What stands for a `$n`.
pub(super) enum Value {
    Text(String),
    Blob(Vec<u8>),
    Big(i64),
    Int(i32),
    Flag(bool),
    Texts(Vec<String>),
    Blobs(Vec<Vec<u8>>),
    Bigs(Vec<i64>),
}

pub(super) struct Call<'v> {
    pub(super) verb: &'v Verb,
    values: Vec<Value>,
}

impl<'v> Call<'v> {
    pub(super) fn new(verb: &'v Verb, values: Vec<Value>) -> Self {
        Self { verb, values }
    }

    /// With the values beside the statement, which is prepared once per connection.
    ///
    /// # Errors
    /// The driver cannot encode a value: it is too long.
    pub(super) fn bound<'q>(&self) -> Result<Query<'q, Postgres, PgArguments>, sqlx::Error> {
        let mut bound = PgArguments::default();
        // At once: else the driver's buffers grow by a value at a time.
        bound.reserve(self.values.len(), self.values.iter().map(Value::size).sum());
        for value in &self.values {
            match value {
                Value::Text(text) => bound.add(text.as_str()),
                Value::Blob(blob) => bound.add(blob.as_slice()),
                Value::Big(number) => bound.add(*number),
                Value::Int(number) => bound.add(*number),
                Value::Flag(flag) => bound.add(*flag),
                Value::Texts(texts) => bound.add(texts),
                Value::Blobs(blobs) => bound.add(blobs),
                Value::Bigs(numbers) => bound.add(numbers),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        // The text of a verb is ours, with a checked schema in it; everything else is bound.
        Ok(sqlx::query_with(AssertSqlSafe(self.verb.sql.clone()), bound))
    }

    /// With the values in its text: one message, so one transaction on one session of the server, and nothing is left
    /// behind in it. A statement without a name would take two messages, and the second could meet another session
    /// with somebody else's statement.
    pub(super) fn spelled(&self) -> AssertSqlSafe<String> {
        let mut text = LEVEL.to_owned();
        let mut parts = self.verb.in_one.as_ref().unwrap_or(&self.verb.sql).split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            let value = number.parse::<usize>().ok().and_then(|n| self.values.get(n.checked_sub(1)?));
            match value {
                Some(value) => value.spell(&mut text),
                // The server refuses it.
                None => text.push('$'),
            }
            text.push_str(rest);
        }
        AssertSqlSafe(text)
    }
}

impl Value {
    /// How many bytes it takes in a message, about: a list says what it is, and how long each of its items is.
    fn size(&self) -> usize {
        let list = |lengths: usize, items: usize| 24 + lengths + items * 4;
        4 + match self {
            Self::Text(text) => text.len(),
            Self::Blob(blob) => blob.len(),
            Self::Big(_) => 8,
            Self::Int(_) => 4,
            Self::Flag(_) => 1,
            Self::Texts(texts) => list(texts.iter().map(String::len).sum(), texts.len()),
            Self::Blobs(blobs) => list(blobs.iter().map(Vec::len).sum(), blobs.len()),
            Self::Bigs(numbers) => list(numbers.len() * 8, numbers.len()),
        }
    }

    /// Appends it as a literal. Text that is more than plain goes as hexadecimal digits: that holds no quotes and no
    /// backslashes, whatever they mean to this server.
    fn spell(&self, to: &mut String) {
        match self {
            Self::Text(text) => spell_text(text, to),
            Self::Blob(blob) => {
                to.push_str("decode('");
                to.push_str(&hex::encode(blob));
                to.push_str("', 'hex')");
            }
            // In brackets, as `-1::bigint` would be `-(1::bigint)`.
            Self::Big(number) => push(to, format_args!("({number})::bigint")),
            Self::Int(number) => push(to, format_args!("({number})::integer")),
            Self::Flag(flag) => push(to, format_args!("{flag}")),
            Self::Texts(texts) => spell_list("text", texts, to, |text, to| spell_text(text, to)),
            Self::Blobs(blobs) => spell_list("bytea", blobs, to, |blob, to| {
                to.push_str("decode('");
                to.push_str(&hex::encode(blob));
                to.push_str("', 'hex')");
            }),
            Self::Bigs(numbers) => {
                spell_list("bigint", numbers, to, |number, to| push(to, format_args!("({number})")));
            }
        }
    }
}

fn push(to: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = to.write_fmt(text);
}

fn spell_text(text: &str, to: &mut String) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@%".contains(&b);
    if text.bytes().all(plain) {
        push(to, format_args!("'{text}'::text"));
    } else {
        to.push_str("convert_from(decode('");
        to.push_str(&hex::encode(text.as_bytes()));
        to.push_str("', 'hex'), 'UTF8')");
    }
}

fn spell_list<T>(kind: &str, items: &[T], to: &mut String, spell: impl Fn(&T, &mut String)) {
    to.push_str("ARRAY[");
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            to.push(',');
        }
        spell(item, to);
    }
    push(to, format_args!("]::{kind}[]"));
}

pub(super) fn blob(holder: HolderId) -> Vec<u8> {
    holder.as_u128().to_be_bytes().to_vec()
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(sql: &str, values: Vec<Value>) -> String {
        let verb = Verb { function: "f", sql: sql.into(), in_one: None, urgent: false, many: false };
        let text = Call::new(&verb, values).spelled().0;
        text.strip_prefix(LEVEL).unwrap().to_owned()
    }

    #[test]
    fn values_stand_where_their_numbers_are() {
        let values = (1..=11).map(Value::Big).collect();
        assert_eq!(
            spelled("SELECT f($11, $1, $2)", values),
            "SELECT f((11)::bigint, (1)::bigint, (2)::bigint)"
        );
        let values = vec![Value::Text("$1".into()), Value::Flag(true)];
        assert_eq!(
            spelled("SELECT f($1, $2)", values),
            "SELECT f(convert_from(decode('2431', 'hex'), 'UTF8'), true)"
        );
    }

    #[test]
    fn no_text_gets_out_of_its_quotes() {
        for text in ["'; DROP TABLE x; --", "\\'", "é", "a b", "\"", "$$", "\n"] {
            let spelled = spelled("$1", vec![Value::Text(text.into())]);
            assert!(
                spelled.bytes().all(|b| b.is_ascii_alphanumeric() || b"_('), ".contains(&b)),
                "{spelled}"
            );
            assert_eq!(spelled.matches('\'').count(), 6, "{spelled}");
        }
        assert_eq!(spelled("$1", vec![Value::Text("a-b_c.d:e@%2F".into())]), "'a-b_c.d:e@%2F'::text");
    }

    #[test]
    fn lists_keep_their_type_when_empty() {
        assert_eq!(spelled("$1", vec![Value::Texts(vec![])]), "ARRAY[]::text[]");
        let blobs = vec![vec![0_u8, 255], vec![]];
        assert_eq!(
            spelled("$1", vec![Value::Blobs(blobs)]),
            "ARRAY[decode('00ff', 'hex'),decode('', 'hex')]::bytea[]"
        );
        assert_eq!(spelled("$1", vec![Value::Bigs(vec![-1, 2])]), "ARRAY[(-1),(2)]::bigint[]");
    }
}
