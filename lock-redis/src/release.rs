//! Release and eviction: an entry leaves its line, and the next ones hold.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};

use crate::keys::Keys;
use crate::reply;
use crate::scripts::{self, Script};
use crate::topology::Servers;

pub(crate) async fn release(servers: &Servers, keys: &Keys, ticket: &Ticket) -> Result<Release> {
    let line = keys.of(&ticket.name);
    let call = |(script, keys): (&'static Script, usize)| {
        let mut command = script.call(keys);
        command.arg(&line.line()[..keys]).arg(ticket.holder.to_hex());
        (script, command)
    };
    let calls = [(&scripts::RELEASE, 4), (&scripts::RELEASE_PART, 1), (&scripts::RELEASE_PART, 2)].map(call);
    let answer = servers.call_or_part(line.slot(), &calls).await?;
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
    reply::release(&servers.call(line.slot(), &scripts::EVICT, command).await?.value()?)
}
