//! Looking at one line, and at the names that have one.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};

use super::keys::key;
use super::pool::{Answer, Client};
use super::sql::Value;
use crate::listing::{listing, range};
use crate::value::snapshot;

pub(super) async fn inspect(client: &Client, name: &LockName) -> Result<Snapshot> {
    let key = key(name);
    let values = [("name", Value::Bytes(key.as_bytes()))];
    snapshot(name, client.ask(include_str!("sql/inspect.sql"), &values, Answer::all).await?)
}

pub(super) async fn list(client: &Client, prefix: &str, page: &Page) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, until) = range(prefix);
    let values = [
        ("from", Value::Bytes(from.as_bytes())),
        ("until", Value::Bytes(until.as_bytes())),
        ("after", Value::Bytes(page.cursor.as_deref().unwrap_or_default().as_bytes())),
        ("limit", Value::Int(i64::try_from(limit).unwrap_or(1) + 1)),
    ];
    listing(client.ask(include_str!("sql/list.sql"), &values, Answer::all).await?, limit)
}
