//! The functions of the schema (`schema/0001`), as they are called: by a prepared statement, or spelled out in one message.

use onelock_core::HolderId;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::value::blob;

/// What the functions need, and how the driver reads bytes, whatever the session's defaults are; it lasts for the one transaction of
/// its message.
const LEVEL: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL bytea_output = hex; \
                     SET LOCAL statement_timeout = 0; ";

/// Bytes, or a text that may hold anything, as hexadecimal digits: no value has quotes or backslashes, whatever they mean to
/// this server.
pub(super) fn hexed(value: impl AsRef<[u8]>) -> String {
    hex::encode(value)
}

/// Plain values in one.
pub(super) fn array<T: ToString>(values: impl Iterator<Item = T>) -> String {
    let quoted: Vec<_> = values.map(|value| format!("\"{}\"", value.to_string())).collect();
    format!("{{{}}}", quoted.join(","))
}

/// Holders in one; the statement puts the backslashes before each `x` that make it an array of bytes.
pub(super) fn blobs(holders: impl Iterator<Item = HolderId>) -> String {
    array(holders.map(|holder| format!("x{}", hexed(blob(holder)))))
}

/// Where the functions are, and what they wait for.
pub(super) struct Schema {
    pub(super) name: String,
    pub(super) durable: bool,
}

impl Schema {
    fn fill(&self, text: &str) -> String {
        // The schema was checked to be a plain identifier; in quotes it may be a word of the language, too.
        let text = text.trim_end().replace("{schema}", &format!("\"{}\"", self.name));
        text.replace("{durable}", if self.durable { "true" } else { "false" })
    }

    /// A call with values for `$1`, `$2`, …; the statement says of which type they are.
    pub(super) fn call(&self, text: &str, values: impl Into<Vec<String>>) -> Call {
        Call { sql: self.fill(text), two: None, values: values.into() }
    }

    /// The same for what waits for the disk: two transactions where it may be, so nobody else waits for the disk with it.
    pub(super) fn flushed(&self, one: &str, two: &str, values: impl Into<Vec<String>>) -> Call {
        Call { two: self.durable.then(|| self.fill(two)), ..self.call(one, values) }
    }
}

/// The call of a function.
pub(super) struct Call {
    sql: String,
    /// To be prepared instead: what is more than one transaction cannot be a part of a message.
    two: Option<String>,
    values: Vec<String>,
}

impl Call {
    /// What the function is called, without its schema.
    pub(super) fn function(&self) -> &str {
        let named = self.sql.split_once("\".").map_or("", |(_, named)| named);
        named.split('(').next().unwrap_or_default()
    }

    /// With the values beside the statement, which is prepared once per connection.
    pub(super) fn bound(&self) -> Query<'_, Postgres, PgArguments> {
        // The text is ours, with a checked schema in it; everything else is bound.
        let query = sqlx::query(AssertSqlSafe(self.two.as_deref().unwrap_or(&self.sql)));
        self.values.iter().fold(query, |query, value| query.bind(value))
    }

    /// With the values in its text: one message, so one transaction on one session of the server, and nothing is left
    /// behind in it. A statement without a name would take two messages, and the second could meet another session
    /// with somebody else's statement.
    ///
    /// For a lock it waits so many milliseconds.
    ///
    /// # Errors
    /// A value is not plain.
    pub(super) fn spelled(&self, patience: u128) -> Result<AssertSqlSafe<String>, sqlx::Error> {
        if self.values.iter().any(|value| value.contains(['\'', '\\', '\0'])) {
            return Err(sqlx::Error::Encode("a value with a quote in it".into()));
        }
        let mut text = format!("{LEVEL}SET LOCAL lock_timeout = {patience}; ");
        for (at, part) in self.sql.split('$').enumerate() {
            let rest = part.trim_start_matches(|c: char| at > 0 && c.is_ascii_digit());
            let number = part[..part.len() - rest.len()].parse::<usize>().unwrap_or(0);
            if let Some(value) = number.checked_sub(1).and_then(|at| self.values.get(at)) {
                text.extend(["'", value, "'"]);
            }
            text.push_str(rest);
        }
        Ok(AssertSqlSafe(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(sql: &str, values: &[&str]) -> Result<String, sqlx::Error> {
        let values = values.iter().map(ToString::to_string).collect();
        let text = Call { sql: sql.into(), two: None, values }.spelled(7)?.0;
        Ok(text
            .strip_prefix(LEVEL)
            .and_then(|text| text.strip_prefix("SET LOCAL lock_timeout = 7; "))
            .unwrap()
            .to_owned())
    }

    #[test]
    fn values_stand_where_their_numbers_are() {
        let values = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];
        assert_eq!(spelled("SELECT f($11::int, $1, $2)", &values).unwrap(), "SELECT f('11'::int, '1', '2')");
        let values = ["$1", &array(["null", "b"].iter())];
        assert_eq!(spelled("1 $1, $2", &values).unwrap(), "1 '$1', '{\"null\",\"b\"}'");
        let two = blobs([HolderId::from_u128(255), HolderId::from_u128(u128::MAX)].into_iter());
        let zeros = "0".repeat(30);
        let written = format!("'{{\"x{zeros}ff\",\"x{}\"}}'", "f".repeat(32));
        assert_eq!(spelled("$1", &[&two]).unwrap(), written);
        assert_eq!(spelled("$1", &[&blobs(std::iter::empty())]).unwrap(), "'{}'");
    }

    #[test]
    fn no_text_gets_out_of_its_quotes() {
        for text in ["'; DROP TABLE x; --", "\\", "a'b", "\0"] {
            assert!(spelled("$1", &[text]).is_err(), "{text}");
            let hexed = spelled("$1", &[&hexed(text)]).unwrap();
            assert!(hexed.trim_matches('\'').bytes().all(|b| b.is_ascii_hexdigit()), "{hexed}");
        }
    }

    #[test]
    fn a_call_says_which_function_it_is() {
        let schema = Schema { name: "s".into(), durable: true };
        let (one, two) = (include_str!("sql/renew.sql"), include_str!("sql/renew_and_flush.sql"));
        assert_eq!(schema.flushed(one, two, []).function(), "renew");
        assert_eq!(schema.call("SELECT pg_backend_pid()", []).function(), "");
    }
}
