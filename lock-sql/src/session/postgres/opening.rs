//! Before the first lock: is this a server that can, is nobody in between, and is the schema there?

use onelock_core::{Error, ErrorKind, Result};
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::session::{ask_raw, get, pooled};
use crate::session::OPENING;
use crate::session::sessions::strange;
use crate::unharmed::legible;

/// The SQL that makes the schema, to be run once, in one transaction, by the role that is to own it. The role that takes
/// locks then needs `USAGE` on the schema and on its sequence, and `EXECUTE` on its functions.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] when `schema` is not a plain lower-case identifier.
pub fn migration(schema: &str) -> Result<String> {
    crate::postgres::config::check_schema(schema)?;
    let file = include_str!("../../../migrations/postgres_session/0001.sql");
    Ok(file.replace("{schema}", &format!("\"{schema}\"")))
}

/// The first version that ends idle sessions is the oldest that is served.
pub(super) async fn check_version(conn: &mut PgConnection) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::integer >= 140000";
    let rows = ask_raw(conn, sql, OPENING).await?;
    if legible(|| get(rows.first().ok_or_else(strange)?, 0))? {
        return Ok(());
    }
    let text = "session locks need PostgreSQL 14 or later: an older one does not end idle sessions, and a lock would \
                have no lease";
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Two connections must meet two sessions of the server, and each its own again, also while the other is busy.
pub(super) async fn refuse_pooler(a: &mut PgConnection, b: &mut PgConnection) -> Result<()> {
    async fn session(conn: &mut PgConnection, sql: &str) -> Result<i32> {
        let rows = ask_raw(conn, sql, OPENING).await?;
        let row = rows.iter().find(|row| !row.is_empty()).ok_or_else(strange)?;
        legible(|| get(row, 0))
    }
    const WHICH: &str = "SELECT pg_backend_pid()";
    let (of_a, of_b) = (session(a, WHICH).await?, session(b, WHICH).await?);
    let mut same = of_a != of_b;
    for _ in 0..3 {
        // Who is in a transaction keeps a session from the other.
        same &= session(b, "BEGIN; SELECT pg_backend_pid()").await? == of_b;
        same &= session(a, "BEGIN; SELECT pg_backend_pid()").await? == of_a;
        ask_raw(a, "COMMIT", OPENING).await?;
        same &= session(a, WHICH).await? == of_a;
        ask_raw(b, "COMMIT", OPENING).await?;
        same &= session(b, WHICH).await? == of_b;
    }
    if same { Ok(()) } else { Err(pooled()) }
}
