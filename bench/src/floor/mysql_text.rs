//! Requests to MySQL as texts with values in them, and as prepared statements.

use std::fmt::Write as _;
use std::sync::Arc;

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{Arguments as _, AssertSqlSafe, Executor as _};

use crate::subject::Failure;

/// A request with question marks for values.
pub(super) struct Prepared {
    sql: Arc<str>,
    marks: Vec<&'static str>,
}

/// What stands for a question mark.
pub(super) enum Value<'v> {
    Bytes(&'v [u8]),
    Text(&'v str),
    Int(i64),
}

pub(super) async fn ask(connection: &mut MySqlConnection, sql: &str) -> Result<MySqlRow, Failure> {
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
    Ok(rows.into_iter().next().ok_or("no row")?)
}

/// A request without its comments, and with these values in it. The longest names come first.
pub(super) fn filled(text: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(2048);
    for line in text.lines().filter(|line| !line.starts_with("--")) {
        out.push_str(line.trim_start());
        out.push('\n');
    }
    values.iter().fold(out, |text, (name, value)| text.replace(name, value))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = "x'".to_owned();
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text + "'"
}

impl Prepared {
    pub(super) fn new(text: &str) -> Self {
        let words = ["name", "holder", "number", "own", "before", "behind"];
        let mut marks = Vec::new();
        for word in words {
            let places =
                text.match_indices(&format!(":{word}")).map(|(at, _)| (at, word)).collect::<Vec<_>>();
            marks.extend(places);
        }
        marks.sort_unstable();
        let sql = words.iter().fold(text.to_owned(), |text, word| text.replace(&format!(":{word}"), "?"));
        Self { sql: sql.into(), marks: marks.into_iter().map(|(_, word)| word).collect() }
    }

    /// Its one row.
    pub(super) async fn ask(
        &self,
        connection: &mut MySqlConnection,
        values: &[(&str, Value<'_>)],
    ) -> Result<MySqlRow, Failure> {
        Ok(connection.fetch_all(self.with(values)?).await?.into_iter().next().ok_or("no row")?)
    }

    /// How many rows it changed.
    pub(super) async fn change(
        &self,
        connection: &mut MySqlConnection,
        values: &[(&str, Value<'_>)],
    ) -> Result<u64, Failure> {
        Ok(connection.execute(self.with(values)?).await?.rows_affected())
    }

    fn with(&self, values: &[(&str, Value<'_>)]) -> Result<Query<'_, MySql, MySqlArguments>, Failure> {
        let mut all = MySqlArguments::default();
        for mark in &self.marks {
            match values.iter().find(|(word, _)| word == mark).map(|(_, value)| value) {
                Some(Value::Bytes(bytes)) => all.add(*bytes)?,
                Some(Value::Text(text)) => all.add(*text)?,
                Some(Value::Int(number)) => all.add(number)?,
                None => return Err("a value is missing".into()),
            }
        }
        Ok(sqlx::query_with(AssertSqlSafe(Arc::clone(&self.sql)), all))
    }
}
