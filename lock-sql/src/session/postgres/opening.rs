//! Before the first lock: is this a server that can, is nobody in between, and is the schema there?

use onelock_core::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnection;

use crate::postgres::connect::raw;
use crate::postgres::error::explain;
use crate::session::sessions::moved;

/// The SQL that makes the schema, to be run once, in one transaction, by the role that is to own it. The role that takes
/// locks then needs `USAGE` on the schema and on its sequence, and `EXECUTE` on its functions.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] when `schema` is not a plain lower-case identifier.
pub fn migration(schema: &str) -> Result<String> {
    crate::postgres::config::check_schema(schema)?;
    let file = include_str!("schema/0001.sql");
    Ok(file.replace("{schema}", &format!("\"{schema}\"")))
}

/// Refuses a server before the first version that ends idle sessions, and a pooler: two connections must meet two sessions of
/// the server, and each its own again, also while the other is busy.
pub(super) async fn check(a: &mut PgConnection, b: &mut PgConnection) -> Result<()> {
    async fn meets(conn: &mut PgConnection, first: &str) -> Result<(i32, bool)> {
        let sql = "SELECT pg_backend_pid(), current_setting('server_version_num')::integer >= 140000";
        raw(conn, format!("{first}{sql}")).await.map_err(explain)
    }
    let (of_a, of_b) = (meets(a, "").await?, meets(b, "").await?);
    if !of_a.1 {
        let text = "session locks need PostgreSQL 14 or later: an older one does not end idle sessions, and a lock \
                    would have no lease";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let mut same = of_a != of_b;
    for _ in 0..3 {
        // Who is in a transaction keeps a session from the other.
        same &= meets(b, "BEGIN; ").await? == of_b;
        same &= meets(a, "BEGIN; ").await? == of_a;
        meets(a, "COMMIT; ").await?;
        same &= meets(a, "").await? == of_a;
        meets(b, "COMMIT; ").await?;
        same &= meets(b, "").await? == of_b;
    }
    if same { Ok(()) } else { Err(moved("postgres")) }
}
