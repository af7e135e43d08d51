//! Requests to MySQL as texts with values in them.

use std::fmt::Write as _;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::subject::Failure;

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
