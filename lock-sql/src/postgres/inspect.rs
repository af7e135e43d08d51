//! Inspecting a line, and listing the names in use.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};

use super::backend::Shared;
use super::line::{read_modes, read_view};
use super::sql::{hexed, plain};
use crate::listing::{listing, range};
use crate::pool::Lane;
use crate::value::snapshot;

pub(super) async fn inspect(shared: &Shared, name: &LockName) -> Result<Snapshot> {
    let call = shared.sql.inspect.call([plain(name.encoded())]);
    let read = |rows: &[_]| rows.iter().map(read_view).collect::<Result<Vec<_>>>();
    Ok(snapshot(name, shared.pool.ask(Lane::Verb, &call, |answer| read(&answer.rows)).await?))
}

pub(super) async fn list(shared: &Shared, prefix: &str, page: &Page) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, until) = range(prefix);
    let after = page.cursor.as_deref().unwrap_or_default();
    let call = shared.sql.list.call([plain(from), plain(until), hexed(after), plain(limit + 1)]);
    let read = |rows: &[_]| rows.iter().map(read_modes).collect::<Result<Vec<_>>>();
    listing(shared.pool.ask(Lane::Verb, &call, |answer| read(&answer.rows)).await?, limit)
}
