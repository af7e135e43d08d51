//! The functions of the schema, as they are called: by a prepared statement, or spelled out in one message.

use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::Durability;

/// The functions need it, whatever the session's default is; it lasts for the one transaction of its message.
const LEVEL: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ";

/// The call of a function, with `$1`, `$2`, … in it.
pub(super) struct Verb {
    pub(super) function: &'static str,
    /// To be prepared.
    sql: Arc<str>,
    /// To be spelled out, where it is not the same: what is more than one transaction cannot be a part of a message.
    in_one: Option<Arc<str>>,
}

/// What stands for a `$n`. The statement says of which type it is.
pub(super) enum Value {
    Text(String),
    Blobs(Vec<Vec<u8>>),
}

/// A value without quotes and backslashes, whatever they mean to this server.
pub(super) fn plain(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

/// Bytes, or a text that may hold anything, as hexadecimal digits.
pub(super) fn hexed(value: impl AsRef<[u8]>) -> Value {
    Value::Text(hex::encode(value))
}

/// Plain values in one.
pub(super) fn array<T: ToString>(values: impl Iterator<Item = T>) -> Value {
    let quoted: Vec<_> = values.map(|value| format!("\"{}\"", value.to_string())).collect();
    Value::Text(format!("{{{}}}", quoted.join(",")))
}

pub(super) struct Call {
    pub(super) verb: Arc<Verb>,
    values: Vec<Value>,
}

impl Verb {
    pub(super) fn call(self: &Arc<Self>, values: impl Into<Vec<Value>>) -> Call {
        Call { verb: Arc::clone(self), values: values.into() }
    }
}

impl Call {
    /// With the values beside the statement, which is prepared once per connection.
    pub(super) fn bound(&self) -> Query<'_, Postgres, PgArguments> {
        // The text of a verb is ours, with a checked schema in it; everything else is bound.
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.verb.sql)));
        self.values.iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Blobs(blobs) => query.bind(blobs),
        })
    }

    /// With the values in its text: one message, so one transaction on one session of the server, and nothing is left
    /// behind in it. A statement without a name would take two messages, and the second could meet another session
    /// with somebody else's statement.
    ///
    /// # Errors
    /// A value is not plain.
    pub(super) fn spelled(&self) -> Result<AssertSqlSafe<String>, sqlx::Error> {
        let mut text = LEVEL.to_owned();
        for (at, part) in self.verb.in_one.as_ref().unwrap_or(&self.verb.sql).split('$').enumerate() {
            let rest = part.trim_start_matches(|c: char| at > 0 && c.is_ascii_digit());
            let number = part[..part.len() - rest.len()].parse::<usize>().unwrap_or(0);
            match number.checked_sub(1).and_then(|at| self.values.get(at)) {
                Some(Value::Text(value)) if value.contains(['\'', '\\', '\0']) => {
                    return Err(sqlx::Error::Encode("a value with a quote in it".into()));
                }
                Some(Value::Text(value)) => text.extend(["'", value, "'"]),
                Some(Value::Blobs(blobs)) => {
                    let blobs: Vec<_> =
                        blobs.iter().map(|blob| format!("decode('{}', 'hex')", hex::encode(blob))).collect();
                    text.extend(["ARRAY[", &blobs.join(","), "]::bytea[]"]);
                }
                None => {}
            }
            text.push_str(rest);
        }
        Ok(AssertSqlSafe(text))
    }
}

/// The calls, with the schema in them.
pub(super) struct Sql {
    pub(super) acquire: Arc<Verb>,
    pub(super) renew: Arc<Verb>,
    pub(super) release: Arc<Verb>,
    pub(super) evict: Arc<Verb>,
    pub(super) raise: Arc<Verb>,
    pub(super) inspect: Arc<Verb>,
    pub(super) list: Arc<Verb>,
    pub(super) watched: Arc<Verb>,
    /// Sends a notification.
    pub(super) notify: Arc<Verb>,
    /// Which session of the server this is.
    pub(super) session: Arc<Verb>,
}

impl Sql {
    pub(super) fn new(schema: &str, durability: Durability) -> Self {
        let durable = durability == Durability::Durable;
        // The schema was checked to be a plain identifier; in quotes it may be a word of the language, too.
        let text = |text: &str| -> Arc<str> {
            let text = text.trim_end().replace("{schema}", &format!("\"{schema}\""));
            text.replace("{durable}", if durable { "true" } else { "false" }).into()
        };
        let verb = |function, sql| Arc::new(Verb { function, sql: text(sql), in_one: None });
        // What waits for the disk is two transactions where it may be: nobody else waits for the disk with it then.
        let flushed = |function, two, sql| {
            let flushed = || Arc::new(Verb { function, sql: text(two), in_one: Some(text(sql)) });
            if durable { flushed() } else { verb(function, sql) }
        };
        let (acquire, renew) = (include_str!("sql/acquire.sql"), include_str!("sql/renew.sql"));
        Self {
            acquire: flushed("acquire", include_str!("sql/acquire_and_flush.sql"), acquire),
            renew: flushed("renew", include_str!("sql/renew_and_flush.sql"), renew),
            release: verb("release", include_str!("sql/release.sql")),
            evict: verb("evict", include_str!("sql/evict.sql")),
            raise: verb("raise", include_str!("sql/raise.sql")),
            inspect: verb("inspect", include_str!("sql/inspect.sql")),
            list: verb("list", include_str!("sql/list.sql")),
            watched: verb("watched", include_str!("sql/watched.sql")),
            notify: verb("pg_notify", "SELECT pg_notify($1, $2)"),
            session: verb("pg_backend_pid", "SELECT pg_backend_pid()"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(sql: &str, values: Vec<Value>) -> Result<String, sqlx::Error> {
        let verb = Arc::new(Verb { function: "f", sql: sql.into(), in_one: None });
        let text = verb.call(values).spelled()?.0;
        Ok(text.strip_prefix(LEVEL).unwrap().to_owned())
    }

    #[test]
    fn values_stand_where_their_numbers_are() {
        let values = (1..=11).map(plain).collect();
        assert_eq!(spelled("SELECT f($11::int, $1, $2)", values).unwrap(), "SELECT f('11'::int, '1', '2')");
        let values = vec![plain("$1"), array(["null", "b"].iter())];
        assert_eq!(spelled("1 $1, $2", values).unwrap(), "1 '$1', '{\"null\",\"b\"}'");
        let blobs = || vec![Value::Blobs(vec![vec![0_u8, 255], vec![]])];
        let two = "ARRAY[decode('00ff', 'hex'),decode('', 'hex')]::bytea[]";
        assert_eq!(spelled("$1", blobs()).unwrap(), two);
        assert_eq!(spelled("$1", vec![Value::Blobs(vec![])]).unwrap(), "ARRAY[]::bytea[]");
    }

    #[test]
    fn no_text_gets_out_of_its_quotes() {
        for text in ["'; DROP TABLE x; --", "\\", "a'b", "\0"] {
            assert!(spelled("$1", vec![plain(text)]).is_err(), "{text}");
            let hexed = spelled("$1", vec![hexed(text)]).unwrap();
            assert!(hexed.trim_matches('\'').bytes().all(|b| b.is_ascii_hexdigit()), "{hexed}");
        }
    }
}
