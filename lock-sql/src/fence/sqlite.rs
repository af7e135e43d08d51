//! Watermarks in SQLite.

use onelock_core::{FencingToken, Guard, LockName, Result, fence};
use rusqlite::{Connection, OptionalExtension as _};

use crate::sqlite::error::explain;

/// Makes the table.
pub const SCHEMA: &str = include_str!("sqlite/schema.sql");

/// With `?1` the name and `?2` the token of an exclusive guard: raises the watermark and answers it. A number larger than the
/// token says that the token is stale: roll back.
pub const CHECK: &str = include_str!("sqlite/check.sql");

/// With `?1` the name: answers the watermark, for the token of a shared guard, which does not raise it; no row where nobody has
/// written. A number larger than the token says that the token is stale: roll back.
pub const CHECK_SHARED: &str = include_str!("sqlite/check_shared.sql");

/// Refuses a guard that is lost or whose token is stale, and raises the watermark for an exclusive one. `transaction` is the one
/// that writes; an immediate one does not fail later because another wrote meanwhile.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = std::sync::Arc::new(onelock_core::BootClock);
/// # let store = std::sync::Arc::new(onelock_core::MemoryBackend::new(&onelock_core::MemoryStore::new(clock)));
/// # let locks = onelock_core::Locks::builder(store).build()?;
/// use onelock_sql::fence::sqlite::{SCHEMA, check};
/// use rusqlite::TransactionBehavior::Immediate;
/// let mut data = rusqlite::Connection::open_in_memory()?;
/// data.execute_batch(SCHEMA)?;
/// # data.execute_batch("CREATE TABLE orders (id, paid)")?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// let transaction = data.transaction_with_behavior(Immediate)?;
/// check(&transaction, &guard)?;
/// transaction.execute("UPDATE orders SET paid = true WHERE id = 42", [])?;
/// transaction.commit()?;
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Stale`](onelock_core::ErrorKind::Stale): [`Error::stale`](onelock_core::Error::stale) has both numbers. What
/// [`Guard::token`] says; [`ErrorKind::Unsupported`](onelock_core::ErrorKind::Unsupported) for a permit. SQLite's error.
pub fn check(transaction: &Connection, guard: &Guard) -> Result<()> {
    let raise = fence::raises(guard.mode())?;
    admit(transaction, guard.name(), guard.token()?, raise)
}

/// The same for a token that came from elsewhere, such as a header; `raise` where its holder is an exclusive one.
///
/// # Errors
/// As [`check`].
pub fn admit(transaction: &Connection, name: &LockName, token: FencingToken, raise: bool) -> Result<()> {
    let newest = if raise {
        transaction.query_row(CHECK, (name.as_str(), token.get()), |row| row.get(0)).map(Some)
    } else {
        transaction.query_row(CHECK_SHARED, [name.as_str()], |row| row.get(0)).optional()
    };
    Ok(fence::compare(name, token, newest.map_err(|error| super::failed(explain(error)))?)?)
}
