//! Inspecting a line, and listing the names in use.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};

use super::client::Client;
use super::sql::hexed;
use crate::listing::{listing, range};
use crate::pool::{Answer, Lane};
use crate::value::snapshot;

pub(super) async fn inspect(client: &Client, name: &LockName) -> Result<Snapshot> {
    let call = client.schema.call(include_str!("sql/inspect.sql"), [name.encoded().into_owned()]);
    snapshot(name, client.pool.ask(Lane::Verb, &call, Answer::all).await?)
}

pub(super) async fn list(client: &Client, prefix: &str, page: &Page) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, end) = range(prefix);
    let after = hexed(page.cursor.as_deref().unwrap_or_default());
    let call = client.schema.call(include_str!("sql/list.sql"), [from, end, after, (limit + 1).to_string()]);
    listing(client.pool.ask(Lane::Verb, &call, Answer::all).await?, limit)
}
