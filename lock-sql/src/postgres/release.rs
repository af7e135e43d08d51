//! Releasing an entry, and evicting one by its number.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket, Wake};

use super::client::Client;
use super::sql::{Call, hexed};
use crate::inbox::Inbox;
use crate::pool::{Answer, Lane};
use crate::value::{blob, left};

pub(super) async fn release(client: &Client, inbox: &Inbox, ticket: &Ticket) -> Result<Release> {
    inbox.settle(ticket.holder, Wake::Ask);
    let values = [ticket.name.encoded().into_owned(), hexed(blob(ticket.holder))];
    let released = remove(client, client.schema.call(include_str!("sql/release.sql"), values)).await;
    client.pool.unanswered.released(ticket.holder, released)
}

pub(super) async fn evict(client: &Client, name: &LockName, token: FencingToken) -> Result<Release> {
    let values = [name.encoded().into_owned(), token.to_string()];
    remove(client, client.schema.call(include_str!("sql/evict.sql"), values)).await
}

async fn remove(client: &Client, call: Call) -> Result<Release> {
    let removed = |answer: &Answer<_>| left(answer.one::<(bool,)>()?.0, answer.again);
    client.pool.ask(Lane::Verb, &call, removed).await
}
