//! Releasing an entry, and evicting one by its number.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket, Wake};
use sqlx::Row as _;

use super::backend::Shared;
use super::error::explain;
use super::sql::{Call, hexed, plain};
use crate::pool::Lane;
use crate::value::{blob, left};

pub(super) async fn release(shared: &Shared, ticket: &Ticket) -> Result<Release> {
    shared.inbox.settle(ticket.holder, Wake::Ask);
    let call = shared.sql.release.call([plain(ticket.name.encoded()), hexed(blob(ticket.holder))]);
    remove(shared, call).await
}

pub(super) async fn evict(shared: &Shared, name: &LockName, token: FencingToken) -> Result<Release> {
    remove(shared, shared.sql.evict.call([plain(name.encoded()), plain(token.get())])).await
}

async fn remove(shared: &Shared, call: Call) -> Result<Release> {
    shared
        .pool
        .ask(Lane::Verb, &call, |answer| left(answer.one()?.try_get(0).map_err(explain)?, answer.again))
        .await
}
