//! Calls into a driver that breaks off.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::value::protocol;

/// An answer that the driver was not made for must not end the caller's task: the drivers of sqlx panic on some. What the
/// future worked with must not be used again after the error.
pub(crate) async fn unharmed<T>(
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let broken = |_| Err(sqlx::Error::Protocol("the driver broke off over an answer".into()));
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(broken)
}

/// The same for reading the values of an answer.
pub(crate) fn legible<T>(read: impl FnOnce() -> Result<T, sqlx::Error>) -> onelock_core::Result<T> {
    let broken = |_| Err(protocol("the driver broke off over the values of an answer"));
    let illegible = |error: sqlx::Error| protocol(&format!("the answer is not what was asked for ({error})"));
    std::panic::catch_unwind(AssertUnwindSafe(|| read().map_err(illegible))).unwrap_or_else(broken)
}
