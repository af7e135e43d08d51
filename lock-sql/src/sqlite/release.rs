//! Release and eviction: an entry leaves its line, and the next ones hold.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};

use super::thread::{Effect, Queue};

pub(super) async fn release(queue: &Queue, ticket: &Ticket) -> Result<Release> {
    let of = ticket.clone();
    queue.run(Effect::Writes, move |tx| tx.step(&of.name, |lines, now| lines.release(now, &of))).await
}

pub(super) async fn evict(queue: &Queue, name: &LockName, token: FencingToken) -> Result<Release> {
    let on = name.clone();
    queue.run(Effect::Writes, move |tx| tx.step(&on, |lines, now| lines.evict(now, &on, token))).await
}
