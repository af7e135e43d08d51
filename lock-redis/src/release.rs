//! Release and eviction: an entry leaves its line, and the next ones hold.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};

use crate::keys::Keys;
use crate::topology::Servers;
use crate::{reply, scripts};

pub(crate) async fn release(servers: &Servers, keys: &Keys, ticket: &Ticket) -> Result<Release> {
    let line = keys.of(&ticket.name);
    let (mut whole, mut part) = (scripts::RELEASE.call(4), scripts::RELEASE_PART.call(2));
    whole.arg(&line.line()).arg(ticket.holder.to_hex());
    part.arg(&line.line()[..2]).arg(ticket.holder.to_hex());
    let part = Some((&scripts::RELEASE_PART, &part));
    let answer = servers.call_or_part(line.slot(), (&scripts::RELEASE, &whole), part).await?;
    reply::release(&answer.value()?)
}

pub(crate) async fn evict(
    servers: &Servers,
    keys: &Keys,
    name: &LockName,
    token: FencingToken,
) -> Result<Release> {
    let line = keys.of(name);
    let mut command = scripts::EVICT.call(4);
    command.arg(&line.line()).arg(token.get());
    reply::release(&servers.call(line.slot(), &scripts::EVICT, &command).await?.value()?)
}
