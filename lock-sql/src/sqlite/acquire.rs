//! Joining a line, and lifting the counter.

use onelock_core::{Error, ErrorKind, FencingToken, Raise, Request, Standing, Ticket};

use super::error::Fault;
use super::line::Transaction;

pub(super) fn acquire(tx: &mut Transaction<'_>, request: &Request) -> Result<Standing, Fault> {
    let full = || {
        Error::new(ErrorKind::Full, "the last fencing token was given: the numbers of this file are used up")
    };
    let next = FencingToken::new(tx.number.checked_add(1).ok_or_else(full)?)?;
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
    let ours = |line: &mut onelock_core::line::Line| line.contains(ticket.holder);
    if !tx.with_line(&ticket.name, &[ticket.holder], ticket.delay, ours)? {
        return Ok(Raise::NotHeld);
    }
    tx.number = tx.number.max(token.get());
    Ok(Raise::Raised)
}
