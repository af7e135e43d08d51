//! Joining a line.

use onelock_core::{Request, Result, Standing, Wake};

use super::backend::Shared;
use super::line::read_found;
use super::sql::{hexed, plain};
use crate::pool::Lane;
use crate::value::{blob, micros};

/// Joins the line, or holds at once.
pub(super) async fn acquire(shared: &Shared, request: &Request) -> Result<Standing> {
    if request.queue {
        // Before it is sent: the notification of a promotion may come before the answer.
        shared.inbox.expect(request.holder);
    }
    let standing = join(shared, request).await;
    if !matches!(standing, Ok(Standing::Waiting(_))) {
        shared.inbox.settle(request.holder, Wake::Ask);
    }
    standing
}

async fn join(shared: &Shared, request: &Request) -> Result<Standing> {
    let call = shared.sql.acquire.call([
        plain(request.name.encoded()),
        hexed(blob(request.holder)),
        plain(request.mode),
        plain(micros(request.lease)),
        plain(micros(request.waiter_lease)),
        plain(micros(request.delay)),
        plain(request.queue),
        plain(shared.channel.address()),
        hexed(request.note.as_str()),
        plain(u16::from(request.epoch)),
    ]);
    let leases = (request.lease, request.waiter_lease);
    let read = |row: &_| read_found(row, request.holder, leases);
    Ok(shared.pool.ask(Lane::Verb, &call, |answer| read(answer.one()?)).await?.standing())
}
