//! Requests that a session is told once.

use std::sync::Arc;

use sqlx::mysql::{MySqlArguments, MySqlConnection};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};

use crate::mysql::sql::{Template, Value, push_hex};

/// A statement that the server has read before: reading one costs it more than taking a lock.
#[derive(Debug)]
pub(super) struct Prepared {
    sql: Arc<str>,
    /// Which value each of its marks is.
    order: Vec<&'static str>,
}

impl Prepared {
    /// The statement of this template, without the one that sets how long the session may be idle.
    pub(super) fn new(template: &Template) -> Self {
        let (sql, order) = template.marked("idle");
        Self { sql: sql.into(), order }
    }

    /// Has the server read it.
    pub(super) async fn tell(&self, conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        conn.prepare(AssertSqlSafe(Arc::clone(&self.sql)).into_sql_str()).await.map(drop)
    }

    /// It with these values.
    pub(super) fn with<'q>(&self, values: &[(&str, Value<'q>)]) -> Query<'q, sqlx::MySql, MySqlArguments> {
        let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql)));
        for name in &self.order {
            let value = values.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
            query = match value {
                Some(Value::Int(number)) => query.bind(number),
                Some(Value::Bytes(bytes)) => query.bind(bytes),
                Some(Value::Text(text)) => query.bind(text),
                Some(Value::Digest(digest)) => {
                    let mut text = String::with_capacity(64);
                    push_hex(&mut text, digest);
                    query.bind(text)
                }
                // Parts of a statement are no values: the driver counts them, and refuses.
                Some(Value::List(_) | Value::Part(_)) | None => query,
            };
        }
        query
    }
}
