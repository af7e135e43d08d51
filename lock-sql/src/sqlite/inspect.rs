//! The names in use.

use onelock_core::{Listing, Page, Result};
use rusqlite::Connection;

use super::error::Fault;
use crate::listing::{listing, range};

/// The cursor is the encoded name that the page before ended with.
pub(super) fn list(sql: &Connection, prefix: &str, page: &Page) -> Result<Listing, Fault> {
    let (first, end) = range(prefix);
    let limit = page.limit.clamp(1, Page::MAX);
    let count = i64::try_from(limit).unwrap_or(1) + 1;
    let mut lines = sql.prepare_cached(include_str!("sql/list.sql"))?;
    let mut rows = lines.query((first, end, page.cursor.as_deref().unwrap_or_default(), count))?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        let modes: String = row.get(1)?;
        lines.push((row.get(0)?, modes.split(' ').map(str::parse).collect::<Result<_>>()?));
    }
    Ok(listing(lines, limit)?)
}
