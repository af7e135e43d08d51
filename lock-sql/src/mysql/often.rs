//! Requests that a connection is told once and asked often: for the server reading one is more work than much of what it asks.

use std::sync::Arc;

use sqlx::mysql::{MySql, MySqlArguments};
use sqlx::query::Query;
use sqlx::{Arguments as _, AssertSqlSafe};

use super::sql::{Template, Value};

/// The bytes of most values of a request are fewer.
const ROOM: usize = 512;

/// A request as a prepared statement. MariaDB prepares blocks, too.
#[derive(Debug)]
pub(super) struct Often {
    sql: Arc<str>,
    /// Which of the values each mark is.
    order: Vec<&'static str>,
}

impl Often {
    /// The request of this template, with these parts in it, which are no values; `around` makes what is sent of it.
    pub(super) fn new(
        template: &Template,
        parts: &[(&str, &str)],
        around: impl FnOnce(&str) -> String,
    ) -> Self {
        let (sql, order) = template.prepared(parts);
        Self { sql: around(&sql).into(), order }
    }

    /// It with these values.
    pub(super) fn with(&self, values: &[(&str, Value<'_>)]) -> Query<'_, MySql, MySqlArguments> {
        let mut all = MySqlArguments::default();
        all.reserve(self.order.len(), ROOM);
        let value = |name: &&str| values.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        for value in self.order.iter().filter_map(value) {
            // What is not written here is not asked of a prepared statement: the driver counts the values, and refuses.
            let _ = match value {
                Value::Int(number) => all.add(number),
                Value::Text(text) => all.add(text),
                Value::Bytes(bytes) => all.add(bytes),
                Value::Digest(_) | Value::List(_) | Value::Part(_) => Ok(()),
            };
        }
        sqlx::query_with(AssertSqlSafe(Arc::clone(&self.sql)), all)
    }
}
