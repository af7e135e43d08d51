//! Before the first lock: is this a server that can, is nobody in between, and is the schema there?

use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

use super::session::{ask_raw, get, pooled, strange};
use crate::postgres::PostgresConfig;
use crate::postgres::error::{denied, explain, is_missing};
use crate::unharmed::{legible, unharmed};

/// The first version that ends idle sessions.
const OLDEST: i32 = 140_000;
/// The version of the schema that this program knows.
const VERSION: i32 = 1;

/// How long each step of opening may take: nobody waits for a lock yet.
pub(super) const OPENING: Duration = Duration::from_secs(30);

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

/// The server's version, which must be one that ends idle sessions.
pub(super) async fn checked(conn: &mut PgConnection) -> Result<i32> {
    let rows = ask_raw(conn, "SELECT current_setting('server_version_num')::integer", OPENING).await?;
    let version = match &rows[..] {
        [row] => legible(|| get::<i32>(row, 0))?,
        _ => return Err(strange()),
    };
    if version < OLDEST {
        let text = "session locks need PostgreSQL 14 or later: an older one does not end idle sessions, and a lock \
                    would have no lease";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(version)
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

/// Makes sure that the schema is there, of the version this program knows.
pub(super) async fn ensure(conn: &mut PgConnection, config: &PostgresConfig) -> Result<()> {
    let schema = &config.namespace;
    let version = async |conn: &mut PgConnection| -> Result<Option<i32>> {
        let sql = format!("SELECT \"{schema}\".onelock_version()");
        match unharmed(conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql)))).await {
            Ok(rows) => rows.first().map(|row| legible(|| get(row, 0))).transpose(),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(denied(
                error,
                &format!("USAGE on schema {schema} and EXECUTE on function {schema}.onelock_version"),
            )),
        }
    };
    match version(conn).await? {
        Some(VERSION) => return Ok(()),
        Some(other) => {
            let text = format!("schema {schema} is of version {other}, this program knows {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        None if !config.migrate => {
            let text = format!(
                "schema {schema} is not there, and `migrate` is off: let its owner run the migration"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        None => {}
    }
    let mut transaction = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(explain)?;
    // One at a time: the second one finds what the first made.
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('onelock migration ' || $1, 0))";
    sqlx::query(lock).bind(schema).persistent(false).execute(&mut *transaction).await.map_err(explain)?;
    let query = sqlx::query(include_str!("sql/made.sql"))
        .bind(format!("\"{schema}\""))
        .bind(schema)
        .persistent(false);
    let row = query.fetch_one(&mut *transaction).await.map_err(explain)?;
    let (there, things): (bool, bool) = (get(&row, 0)?, get(&row, 1)?);
    let done = if there {
        Ok(())
    } else if things {
        let text =
            format!("schema {schema} holds what onelock did not make; choose another with `namespace=…`");
        Err(Error::new(ErrorKind::Foreign, text))
    } else {
        let sql = sqlx::raw_sql(AssertSqlSafe(migration(schema)?));
        let needs =
            "CREATE on the database; or let the schema's owner run the migration, and set `migrate=false`";
        transaction.execute(sql).await.map(drop).map_err(|error| denied(error, needs))
    };
    match done {
        Ok(()) => transaction.commit().await.map_err(explain)?,
        Err(error) => {
            transaction.rollback().await.map_err(explain)?;
            return Err(error);
        }
    }
    match version(conn).await? {
        Some(VERSION) => Ok(()),
        _ => Err(Error::new(ErrorKind::Unsupported, format!("schema {schema} is of another version"))),
    }
}
