//! Release and eviction: an entry leaves its line, and the next ones hold.

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};

use super::thread::{Effect, Queue};

pub(super) async fn release(queue: &Queue, ticket: &Ticket) -> Result<Release> {
    let of = ticket.clone();
    queue.step(Effect::Writes, &ticket.name, move |lines, now| lines.release(now, &of)).await
}

pub(super) async fn evict(queue: &Queue, name: &LockName, token: FencingToken) -> Result<Release> {
    let on = name.clone();
    queue.step(Effect::Writes, name, move |lines, now| lines.evict(now, &on, token)).await
}
