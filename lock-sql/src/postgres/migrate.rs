//! The tables and functions, and how they come into being.

use onelock_core::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::config::check_schema;
use super::connect::raw;
use super::error::{denied, explain};
use crate::hosts::bad;

/// The version that these files make.
const VERSION: i32 = 1;

const FILES: &[&str] = &[
    include_str!("schema/0001/1_tables.sql"),
    include_str!("schema/0001/2_numbers.sql"),
    include_str!("schema/0001/3_promote.sql"),
    include_str!("schema/0001/4_acquire.sql"),
    include_str!("schema/0001/5_renew.sql"),
    include_str!("schema/0001/6_release.sql"),
    include_str!("schema/0001/7_evict.sql"),
    include_str!("schema/0001/8_raise.sql"),
    include_str!("schema/0001/9_look.sql"),
];

/// The SQL that makes the tables and functions in `schema`, to be run once, in one transaction, by the role that is to
/// own them. The role that takes locks then needs `GRANT USAGE ON SCHEMA … TO …` and
/// `GRANT EXECUTE ON ALL ROUTINES IN SCHEMA … TO …`, and no right on a table.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] when `schema` is not a plain lower-case identifier.
pub fn migration(schema: &str) -> Result<String> {
    check_schema(schema)?;
    // A plain identifier; in quotes it may be a word of the language, too.
    Ok(FILES.join("\n").replace("{schema}", &format!("\"{schema}\"")))
}

/// Makes sure that the functions are there, of the version this program knows.
pub(crate) async fn ensure(
    conn: &mut PgConnection,
    schema: &str,
    may_make: bool,
    migration: &str,
) -> Result<()> {
    if is_there(conn, schema).await? {
        return Ok(());
    }
    if !may_make {
        let text =
            format!("schema {schema} is not there, and `migrate` is off: let its owner run the migration");
        return Err(bad(&text));
    }
    // What others committed while this waited for them is to be seen.
    let mut transaction = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(explain)?;
    let made = make(&mut transaction, schema, migration).await;
    // What was not made is not committed; a pooler wants its session back in either case.
    let ended = if made.is_ok() { transaction.commit().await } else { transaction.rollback().await };
    made.and(ended.map_err(explain))
}

/// Whether the functions are there. What is not ours is left alone.
async fn is_there(conn: &mut PgConnection, schema: &str) -> Result<bool> {
    let needs = format!("USAGE on schema {schema} and EXECUTE on function {schema}.onelock_version");
    let made = include_str!("sql/made.sql").replace("{schema}", schema);
    match raw(conn, made).await.map_err(|error| denied(error, &needs))? {
        (true, _) => {}
        (false, false) => return Ok(false),
        (false, true) => {
            let text =
                format!("schema {schema} holds what onelock did not make; choose another with `namespace=…`");
            return Err(Error::new(ErrorKind::Foreign, text));
        }
    }
    let version = raw(conn, format!("SELECT \"{schema}\".onelock_version()")).await;
    match version.map_err(|error| denied(error, &needs))? {
        (VERSION,) => Ok(true),
        (other,) => {
            let text = format!("schema {schema} is of version {other}, this program knows {VERSION}");
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

async fn make(conn: &mut PgConnection, schema: &str, migration: &str) -> Result<()> {
    // One at a time: the second one finds what the first made. No longer than its client waits, or the server keeps the session.
    let lock = "SELECT set_config('lock_timeout', '40s', true), pg_advisory_xact_lock(hashtextextended('onelock migration ' || $1, 0))";
    sqlx::query(lock).bind(schema).persistent(false).execute(&mut *conn).await.map_err(explain)?;
    if is_there(conn, schema).await? {
        return Ok(());
    }
    let needs =
        "CREATE on the database; or let the schema's owner run the migration, and set `migrate=false`";
    let sql = sqlx::raw_sql(AssertSqlSafe(migration.to_owned()));
    conn.execute(sql).await.map(drop).map_err(|error| denied(error, needs))
}
