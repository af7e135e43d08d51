//! Renewal of all that is due, and `raise`, which lifts a counter while an entry is ours.

use futures_util::future::join_all;
use onelock_core::{Error, ErrorKind, FencingToken, Raise, Renewal, Renewed, Result, Ticket};

use crate::acquire::Times;
use crate::keys::{Keys, LineKeys, slot_of};
use crate::reply::{self, Asked};
use crate::scripts::{self, Script};
use crate::topology::{Redirect, Servers};

/// How many entries one script takes: enough to spread the cost of a call, few enough not to hold up others.
pub(crate) const BATCH: usize = 64;

/// All of `due` in one round trip to each server, in scripts of up to [`BATCH`] entries each.
pub(crate) async fn renew(servers: &Servers, keys: &Keys, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let (mut answers, mut items) = (Vec::with_capacity(due.len()), Vec::with_capacity(due.len()));
    for (at, item) in due.iter().enumerate() {
        let times = Times::of(item);
        // Replaced by the server's answer where it is asked.
        answers.push(times.as_ref().map(|_| Renewed::NotHeld).map_err(Clone::clone));
        items.extend(times.ok().map(|times| (at, item, times, keys.of(&item.ticket.name))));
    }
    let batches = batches(servers, items.iter().map(|(.., line)| line.bucket));
    let calls = batches.iter().map(|(slot, batch)| {
        let mut command = scripts::RENEW.call(keys.with_gate(4 * batch.len()));
        for i in batch {
            command.arg(&items[*i].3.line());
        }
        command.arg(&keys.gate);
        for (_, item, times, _) in batch.iter().map(|i| &items[*i]) {
            let (lease, waiter_lease) = times.with_delay();
            command.arg(item.ticket.holder.to_hex()).arg(lease).arg(waiter_lease);
        }
        (*slot, command)
    });
    let replies = servers.call_all(&scripts::RENEW, &calls.collect::<Vec<_>>()).await;
    for ((_, batch), reply) in batches.iter().zip(replies) {
        let partial = |answer: &_| Redirect::of(answer) == Some(Redirect::Partial);
        let renewed = match reply {
            // The slot is on its way, with some of these lines, or a line has fewer keys than four.
            Ok(answer) if partial(&answer.value) => {
                join_all(batch.iter().map(|i| alone(servers, &items[*i].3, items[*i].1, items[*i].2))).await
            }
            reply => {
                let asked = |i: &usize| Asked::new(items[*i].1.ticket.holder, items[*i].2.leases());
                let asked: Vec<_> = batch.iter().map(asked).collect();
                let renewed = reply.and_then(|answer| reply::renewals(&answer.value()?, &asked));
                renewed.unwrap_or_else(|e| batch.iter().map(|_| Err(e.clone())).collect())
            }
        };
        renewed.into_iter().zip(batch).for_each(|(answer, i)| answers[items[*i].0] = answer);
    }
    answers
}

/// One entry, in a slot that is on its way to another node.
async fn alone(servers: &Servers, line: &LineKeys, item: &Renewal, times: Times) -> Result<Renewed> {
    let (holder, (lease, waiter_lease)) = (item.ticket.holder, times.with_delay());
    let call = |(script, keys): (&'static Script, usize)| {
        let mut command = script.call(keys);
        command.arg(&line.line()[..keys]).arg(holder.to_hex()).arg(lease).arg(waiter_lease);
        (script, command)
    };
    let calls = [(&scripts::RENEW, 4), (&scripts::RENEW_PART, 1), (&scripts::RENEW_PART, 2)].map(call);
    let answer = servers.call_or_part(line.slot(), &calls).await?;
    let answers = reply::renewals(&answer.value()?, &[Asked::new(holder, times.leases())])?;
    answers.into_iter().next().unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no answer")))
}

/// What one script may take: up to [`BATCH`] lines, given by their buckets; of one bucket where there are many
/// servers. Each with its slot.
pub(crate) fn batches(servers: &Servers, buckets: impl Iterator<Item = u32>) -> Vec<(u16, Vec<usize>)> {
    let mut lines: Vec<_> = buckets.enumerate().map(|(i, bucket)| (bucket, i)).collect();
    let many = servers.are_many();
    if many {
        lines.sort_unstable();
    }
    let same = |a: &(u32, usize), b: &(u32, usize)| !many || a.0 == b.0;
    let batches = lines.chunk_by(same).flat_map(|lines| lines.chunks(BATCH));
    batches.map(|batch| (slot_of(batch[0].0), batch.iter().map(|(_, i)| *i).collect())).collect()
}

/// The largest token `raise` takes. Scripts count up to 2^53, so 2^52 leaves as many numbers again.
const LARGEST_RAISE: i64 = 1 << 52;

pub(crate) async fn raise(
    servers: &Servers,
    keys: &Keys,
    ticket: &Ticket,
    token: FencingToken,
) -> Result<Raise> {
    if token.get() > LARGEST_RAISE {
        let text = format!("Redis counts tokens up to {LARGEST_RAISE}; {token} cannot be kept");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let line = keys.of(&ticket.name);
    let mut command = scripts::RAISE.call(keys.with_gate(5));
    command.arg(&line.line()).arg(line.counter()).arg(&keys.gate);
    command.arg(ticket.holder.to_hex()).arg(token.get());
    reply::raise(&servers.call(line.slot(), &scripts::RAISE, command).await?.value()?)
}
