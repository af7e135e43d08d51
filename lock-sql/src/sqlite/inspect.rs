//! Inspects one name, and lists the names in use.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};

use super::line::Transaction;
use super::thread::{Effect, Queue};
use crate::listing::{listing, range};

pub(super) async fn inspect(queue: &Queue, name: &LockName) -> Result<Snapshot> {
    let on = name.clone();
    queue.run(Effect::Reads, move |tx| tx.step(&on, |lines, now| lines.inspect(now, &on))).await
}

/// The cursor is the encoded name that the page before ended with.
pub(super) async fn list(queue: &Queue, prefix: &str, page: &Page) -> Result<Listing> {
    let ((first, end), cursor) = (range(prefix), page.cursor.clone().unwrap_or_default());
    let limit = page.limit.clamp(1, Page::MAX);
    let page = move |tx: &mut Transaction<'_>| {
        let mut lines = tx.sql.prepare_cached(include_str!("sql/list.sql"))?;
        let count = i64::try_from(limit).unwrap_or(1) + 1;
        let lines = lines.query_map((&first, &end, &cursor, count), |row| row.try_into())?;
        Ok(listing(lines.collect::<Result<_, _>>()?, limit)?)
    };
    queue.run(Effect::Reads, page).await
}
