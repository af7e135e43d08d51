//! Joining a line.

use onelock_core::{Request, Result, Standing, Wake};

use super::client::Client;
use super::sql::hexed;
use crate::inbox::Inbox;
use crate::pool::Lane;
use crate::value::{Found, blob, micros};

/// Joins the line, or holds at once.
pub(super) async fn acquire(client: &Client, inbox: &Inbox, request: &Request) -> Result<Standing> {
    if request.queue {
        // Before it is sent: the notification of a promotion may come before the answer.
        inbox.expect(request.holder);
    }
    let standing = join(client, request).await;
    client.pool.unanswered.acquired(request, &standing);
    if !matches!(standing, Ok(Standing::Waiting(_))) {
        inbox.settle(request.holder, Wake::Ask);
    }
    standing
}

async fn join(client: &Client, request: &Request) -> Result<Standing> {
    let (one, two) = (include_str!("sql/acquire.sql"), include_str!("sql/acquire_and_flush.sql"));
    let values = [
        request.name.encoded().into_owned(),
        hexed(blob(request.holder)),
        request.mode.to_string(),
        micros(request.lease).to_string(),
        micros(request.waiter_lease).to_string(),
        micros(request.delay).to_string(),
        request.queue.to_string(),
        client.channel.address().to_owned(),
        hexed(request.note.as_str()),
        u16::from(request.epoch).to_string(),
    ];
    let call = client.schema.flushed(one, two, values);
    let leases = (request.lease, request.waiter_lease);
    client
        .pool
        .ask(Lane::Join, &call, |answer| {
            let (whose, token, retry): (Vec<u8>, _, _) = answer.one()?;
            Ok(Found::new((&whose, token, retry), request.holder, leases)?.standing())
        })
        .await
}
