//! Release and eviction: an entry leaves its line, and the next ones hold.

use std::sync::Arc;

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};

use crate::keys::Keys;
use crate::reply;
use crate::topology::Servers;

pub(crate) async fn release(servers: &Arc<Servers>, keys: &Keys, ticket: &Ticket) -> Result<Release> {
    let add = |command: &mut redis::Cmd| {
        command.arg(ticket.holder.to_hex());
    };
    let answer = servers.call_ways(keys.verbs().release, &keys.of(&ticket.name), add).await?;
    reply::release(answer.value()?)
}

pub(crate) async fn evict(
    servers: &Arc<Servers>,
    keys: &Keys,
    name: &LockName,
    token: FencingToken,
) -> Result<Release> {
    let (line, script) = (keys.of(name), keys.verbs().evict);
    let mut command = script.call(&line.line());
    command.arg(token.get());
    reply::release(servers.call(line.slot(), script, &command).await?.value()?)
}
