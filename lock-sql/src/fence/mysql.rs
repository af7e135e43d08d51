//! Watermarks in MySQL and MariaDB.

use onelock_core::{FencingToken, Guard, LockName, Result, fence};
use sqlx::{MySqlConnection, query, query_scalar};

use crate::mysql::error::explain;

/// Makes the table, in the connection's database. A user that checks needs `SELECT`, `INSERT` and `UPDATE` on it.
pub const SCHEMA: &str = include_str!("mysql/schema.sql");

/// With the name and the token of an exclusive guard: raises the watermark and answers it as the last insert id, which
/// `SELECT LAST_INSERT_ID()` says too. A number larger than the token says that the token is stale: roll back.
pub const CHECK: &str = include_str!("mysql/check.sql");

/// With the name: makes its row where there is none, so that [`CHECK_SHARED`], which comes next, finds one to lock.
pub const SEED: &str = include_str!("mysql/seed.sql");

/// With the name: answers the watermark, for the token of a shared guard, which does not raise it. Others that share pass
/// meanwhile. A number larger than the token says that the token is stale: roll back.
pub const CHECK_SHARED: &str = include_str!("mysql/check_shared.sql");

/// Refuses a guard that is lost or whose token is stale, and raises the watermark for an exclusive one. `transaction` is the one
/// that writes.
///
/// ```no_run
/// # async fn pay(pool: sqlx::MySqlPool, guard: onelock_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// onelock_sql::fence::mysql::check(&mut *transaction, &guard).await?;
/// sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Stale`](onelock_core::ErrorKind::Stale): [`Error::stale`](onelock_core::Error::stale) has both numbers. What
/// [`Guard::token`] says; [`ErrorKind::Unsupported`](onelock_core::ErrorKind::Unsupported) for a permit. The server's error.
///
/// # Cancel safety
/// Safe: roll the transaction back.
pub async fn check(transaction: &mut MySqlConnection, guard: &Guard) -> Result<()> {
    let raise = fence::raises(guard.mode())?;
    admit(transaction, guard.name(), guard.token()?, raise).await
}

/// The same for a token that came from elsewhere, such as a header; `raise` where its holder is an exclusive one.
///
/// # Errors
/// As [`check`].
///
/// # Cancel safety
/// As [`check`].
pub async fn admit(
    transaction: &mut MySqlConnection,
    name: &LockName,
    token: FencingToken,
    raise: bool,
) -> Result<()> {
    let newest = if raise {
        let done = query(CHECK).bind(name.as_str()).bind(token.get()).execute(transaction).await;
        done.map(|done| i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX))
    } else {
        match query(SEED).bind(name.as_str()).execute(&mut *transaction).await {
            Ok(_) => query_scalar(CHECK_SHARED).bind(name.as_str()).fetch_one(transaction).await,
            Err(error) => Err(error),
        }
    };
    Ok(fence::compare(name, token, Some(newest.map_err(|error| super::failed(explain(error)))?))?)
}
