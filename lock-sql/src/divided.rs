//! Renewals that are sent together, and in parts where one of them is locked.

use futures_util::future::{BoxFuture, join_all};
use onelock_core::{Error, Renewal, Renewed, Result};

use crate::pool::{Connect, Fault};

/// Sends them together. Where somebody's transaction has one of them, and was left open perhaps, the others are not to be lost with
/// it: they are sent in parts.
pub(crate) async fn divided<'a, S: Connect>(
    due: &'a [Renewal],
    together: &(impl Fn(&'a [Renewal]) -> BoxFuture<'a, Result<Vec<Renewed>>> + Sync),
) -> Vec<Result<Renewed>> {
    match together(due).await {
        Ok(renewed) => renewed.into_iter().map(Ok).collect(),
        Err(error) if due.len() > 1 && is_locked::<S>(&error) => {
            let parts = due.chunks(due.len().div_ceil(16));
            let parts = parts.map(|part| Box::pin(divided::<S>(part, together)));
            join_all(parts).await.into_iter().flatten().collect()
        }
        Err(error) => vec![Err(error); due.len()],
    }
}

fn is_locked<S: Connect>(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(|error| S::fault(error) == Fault::Locked)
}
