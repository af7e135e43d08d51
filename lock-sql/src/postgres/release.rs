//! Releasing an entry, and evicting one by its number.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket, Wake};

use super::backend::Shared;
use super::sql::{Call, hexed};
use crate::pool::Lane;
use crate::value::{blob, left};

pub(super) async fn release(shared: &Shared, ticket: &Ticket) -> Result<Release> {
    shared.inbox.settle(ticket.holder, Wake::Ask);
    let values = [ticket.name.encoded().into_owned(), hexed(blob(ticket.holder))];
    remove(shared, shared.schema.call(include_str!("sql/release.sql"), values)).await
}

pub(super) async fn evict(shared: &Shared, name: &LockName, token: FencingToken) -> Result<Release> {
    let values = [name.encoded().into_owned(), token.to_string()];
    remove(shared, shared.schema.call(include_str!("sql/evict.sql"), values)).await
}

async fn remove(shared: &Shared, call: Call) -> Result<Release> {
    shared
        .pool
        .ask(Lane::Verb, &call, |answer| {
            let (removed,) = answer.one()?;
            left(removed, answer.again)
        })
        .await
}
