//! Joining a line.

use onelock_core::{Mode, Request, Result, Standing};

use super::keys::key;
use super::pool::Client;
use super::sql::Value;
use crate::pool::Lane;
use crate::value::{Found, blob, micros};

pub(super) async fn acquire(client: &Client, request: &Request) -> Result<Standing> {
    let (room, weight) = room_and_weight(request.mode);
    let busy = if request.queue { "NULL" } else { include_str!("sql/busy.sql") };
    let values = [
        ("name", Value::Bytes(key(&request.name))),
        ("holder", Value::Bytes(blob(request.holder))),
        ("mode", Value::Bytes(request.mode.to_string().into_bytes())),
        ("room", Value::Int(room)),
        ("weight", Value::Int(weight)),
        ("queue", Value::Int(request.queue.into())),
        ("lease", Value::Int(micros(request.lease + request.delay))),
        ("waiter_lease", Value::Int(micros(request.waiter_lease + request.delay))),
        ("note", Value::Bytes(request.note.as_str().into())),
        ("epoch", Value::Int(u16::from(request.epoch).into())),
    ];
    let call = client.call(&include_str!("sql/acquire.sql").replace("{busy}", busy), &values);
    let standing = client
        .verbs
        .ask(Lane::Join, &call, |answer| {
            let (number, retry, whose, last): (_, _, Vec<u8>, _) = answer.one()?;
            // Nothing happened where this is an error.
            request.epoch.next(last)?;
            let leases = (request.lease, request.waiter_lease);
            Ok(Found::new((&whose, number, retry), request.holder, leases)?.standing())
        })
        .await;
    client.verbs.unanswered.acquired(request, &standing);
    standing
}

/// How much there is for entries of this kind, and how much of it this one takes.
fn room_and_weight(mode: Mode) -> (i64, i64) {
    match mode {
        Mode::Exclusive => (1, 1),
        Mode::Shared => (u32::MAX.into(), 0),
        Mode::Permit { limit, weight } => (limit.get().into(), weight.get().into()),
    }
}
