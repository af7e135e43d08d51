//! Renewal of all that is due, and `raise`, which lifts a counter while an entry is ours.

use std::sync::Arc;

use futures_util::future::join_all;
use onelock_core::{Error, ErrorKind, FencingToken, Raise, Renewal, Renewed, Result, Ticket};

use crate::keys::Keys;
use crate::topology::Servers;
use crate::{reply, scripts};

/// All of `due` at once, in as few scripts as there may be.
pub(crate) async fn renew(servers: &Arc<Servers>, keys: &Keys, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let ways = keys.verbs().renew;
    let lines: Vec<_> = due.iter().map(|item| keys.of(&item.ticket.name)).collect();
    let add = |i: usize, command: &mut redis::Cmd| reply::ask(&due[i], command);
    let gate = keys.gate.as_deref();
    // A node that stalls keeps the answers of the others until the next renewals are due, at most.
    let grace = due.iter().map(|item| item.lease.min(item.waiter_lease)).min().unwrap_or_default() / 3;
    let mut answers: Vec<_> = due.iter().map(|_| Ok(Renewed::NotHeld)).collect();
    for (batch, answer) in servers.call_lines(ways[0].0, &lines, gate, add, grace).await {
        let renewed = match answer {
            // The slot is on its way, with some of these lines, or a line has fewer keys than four.
            Ok(answer) if answer.is_partial() => {
                let alone = async |i: &usize| {
                    let answer = servers.call_ways(ways, &lines[*i], |command| add(*i, command)).await;
                    reply::renewals(answer, &[&due[*i]]).swap_remove(0)
                };
                join_all(batch.iter().map(alone)).await
            }
            answer => reply::renewals(answer, &batch.iter().map(|i| &due[*i]).collect::<Vec<_>>()),
        };
        renewed.into_iter().zip(batch).for_each(|(answer, i)| answers[i] = answer);
    }
    answers
}

/// The largest token `raise` takes. Scripts count up to 2^53, so 2^52 leaves as many numbers again.
const LARGEST_RAISE: i64 = 1 << 52;

pub(crate) async fn raise(
    servers: &Arc<Servers>,
    keys: &Keys,
    ticket: &Ticket,
    token: FencingToken,
) -> Result<Raise> {
    if token.get() > LARGEST_RAISE {
        let text = format!("Redis counts tokens up to {LARGEST_RAISE}; {token} cannot be kept");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let line = keys.of(&ticket.name);
    let mut command = scripts::RAISE.call(&keys.voting(&line));
    command.arg(ticket.holder.to_hex()).arg(token.get());
    let raised = reply::read(servers.call(line.slot(), &scripts::RAISE, &command).await?.value()?)?;
    Ok(if raised { Raise::Raised } else { Raise::NotHeld })
}
