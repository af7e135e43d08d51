//! Inspects one name, and lists the names in use.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};
use rusqlite::Connection;

use super::error::Fault;
use super::thread::{Effect, Queue};
use crate::listing::{listing, range};

pub(super) async fn inspect(queue: &Queue, name: &LockName) -> Result<Snapshot> {
    let on = name.clone();
    queue.run(Effect::Reads, move |tx| tx.step(&on, |lines, now| lines.inspect(now, &on))).await
}

pub(super) async fn list(queue: &Queue, prefix: &str, page: &Page) -> Result<Listing> {
    let (prefix, page) = (prefix.to_owned(), page.clone());
    queue.run(Effect::Reads, move |tx| page_of(&tx.sql, &prefix, &page)).await
}

/// The cursor is the encoded name that the page before ended with.
fn page_of(sql: &Connection, prefix: &str, page: &Page) -> Result<Listing, Fault> {
    let (first, end) = range(prefix);
    let limit = page.limit.clamp(1, Page::MAX);
    let count = i64::try_from(limit).unwrap_or(1) + 1;
    let mut lines = sql.prepare_cached(include_str!("sql/list.sql"))?;
    let cursor = page.cursor.as_deref().unwrap_or_default();
    let lines = lines.query_map((first, end, cursor, count), |row| row.try_into())?;
    Ok(listing(lines.collect::<Result<_, _>>()?, limit)?)
}
