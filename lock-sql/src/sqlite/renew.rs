//! Renewal of all that is due, in one transaction, and `raise`.

use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket};

use super::error::Fault;
use super::thread::{Effect, Queue};

pub(super) async fn renew(queue: &Queue, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let all = due.to_vec();
    let renew = queue.run(Effect::Writes, move |tx| {
        let each = all.iter().map(|renewal| {
            match tx.step(&renewal.ticket.name, |lines, now| lines.renew(now, renewal)) {
                Err(Fault { error, code: None }) => Ok(Err(error)),
                renewed => Ok(Ok(renewed?)),
            }
        });
        each.collect()
    });
    renew.await.unwrap_or_else(|error| vec![Err(error); due.len()])
}

pub(super) async fn raise(queue: &Queue, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let of = ticket.clone();
    let raise =
        queue.run(Effect::Joins, move |tx| tx.step(&of.name, |lines, now| lines.raise(now, &of, token)));
    raise.await?
}
