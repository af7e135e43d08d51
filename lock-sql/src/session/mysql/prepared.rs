//! Requests that a session is told once.

use std::sync::Arc;

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{Arguments as _, AssertSqlSafe};

use crate::mysql::sql::{Template, Value};

/// The bytes of all values of a request are fewer.
const ROOM: usize = 160;

/// A statement that the server has read before: reading one costs it more than taking a lock. It has `N` values.
#[derive(Debug)]
pub(super) struct Prepared<const N: usize> {
    pub(super) sql: Arc<str>,
    /// What the values are called in the template.
    pub(super) names: [&'static str; N],
    /// Which of the values each mark is.
    order: Vec<usize>,
}

impl<const N: usize> Prepared<N> {
    /// The statement of this template, without the one that sets how long the session may be idle.
    pub(super) fn new(template: &Template, names: [&'static str; N]) -> Self {
        let (sql, marks) = template.marked("idle");
        let order = marks.iter().filter_map(|mark| names.iter().position(|name| name == mark)).collect();
        Self { sql: sql.into(), names, order }
    }

    /// It with these values.
    pub(super) fn with<'q>(&self, values: [Value<'_>; N]) -> Query<'q, sqlx::MySql, MySqlArguments> {
        let mut all = MySqlArguments::default();
        all.reserve(self.order.len(), ROOM);
        for value in self.order.iter().filter_map(|&at| values.get(at)) {
            // What is not written here is not asked of a prepared statement: the driver counts the values, and refuses.
            let _ = match value {
                Value::Int(number) => all.add(number),
                Value::Text(text) => all.add(text),
                Value::Digest(digest) => {
                    let mut digits = [0; 64];
                    let written = hex::encode_to_slice(digest, &mut digits).ok();
                    all.add(written.and_then(|()| str::from_utf8(&digits).ok()))
                }
                Value::Bytes(_) | Value::List(_) | Value::Part(_) => Ok(()),
            };
        }
        sqlx::query_with(AssertSqlSafe(Arc::clone(&self.sql)), all)
    }
}
