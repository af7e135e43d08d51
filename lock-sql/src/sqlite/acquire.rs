//! Joining a line, and lifting the counter.

use onelock_core::line::Line;
use onelock_core::{FencingToken, Raise, Request, Standing, Ticket, TokenEpoch};

use super::error::Fault;
use super::line::Transaction;

pub(super) fn acquire(tx: &mut Transaction<'_>, request: &Request) -> Result<Standing, Fault> {
    let next = request.epoch.next(tx.number)?;
    let (now, mut number) = (tx.now, tx.number);
    let standing = tx.with_line(&request.name, &[request.holder], request.delay, |line| {
        line.acquire(now, request, || {
            number = next.get();
            next
        })
    })?;
    tx.number = number;
    Ok(standing)
}

pub(super) fn raise(tx: &mut Transaction<'_>, ticket: &Ticket, token: FencingToken) -> Result<Raise, Fault> {
    let ours = |line: &mut Line| line.contains(ticket.holder);
    if !tx.with_line(&ticket.name, &[ticket.holder], ticket.delay, ours)? {
        return Ok(Raise::NotHeld);
    }
    // Only a client of that epoch may begin it.
    TokenEpoch::of(tx.number).check_raise(token)?;
    tx.number = tx.number.max(token.get());
    Ok(Raise::Raised)
}
