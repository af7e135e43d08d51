//! Looking at one line, and at the names that have one.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};

use super::keys::key;
use super::pool::{Answer, Client};
use super::sql::Value;
use crate::listing::{listing, range};
use crate::value::snapshot;

pub(super) async fn inspect(client: &Client, name: &LockName) -> Result<Snapshot> {
    let values = [("name", Value::Bytes(key(name)))];
    snapshot(name, client.ask(include_str!("sql/inspect.sql"), &values, Answer::all).await?)
}

pub(super) async fn list(client: &Client, prefix: &str, page: &Page) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, until) = range(prefix);
    let values = [
        ("from", Value::Bytes(from.into())),
        ("until", Value::Bytes(until.into())),
        ("after", Value::Bytes(page.cursor.as_deref().unwrap_or_default().into())),
        ("limit", Value::Int(i64::try_from(limit).unwrap_or(1) + 1)),
    ];
    listing(client.ask(include_str!("sql/list.sql"), &values, Answer::all).await?, limit)
}
