//! Joining a line.

use onelock_core::{Request, Result, Standing};

use super::keys::key;
use super::line::{Cells, found, room_and_weight};
use super::pool::Client;
use super::sql::Value;
use crate::pool::Lane;
use crate::value::micros;

pub(super) async fn acquire(client: &Client, request: &Request) -> Result<Standing> {
    let (key, holder) = (key(&request.name), request.holder.as_u128().to_be_bytes());
    let (name, mode) = (Value::Bytes(key.as_bytes()), request.mode.to_string());
    let (room, weight) = room_and_weight(request.mode);
    let busy = if request.queue { "NULL".into() } else { client.sql.busy.fill(&[("name", name)]) };
    let sql = client.sql.acquire.fill(&[
        ("busy", Value::Part(&busy)),
        ("name", name),
        ("holder", Value::Bytes(&holder)),
        ("mode", Value::Bytes(mode.as_bytes())),
        ("room", Value::Int(room)),
        ("weight", Value::Int(weight)),
        ("queue", Value::Int(request.queue.into())),
        ("lease", Value::Int(micros(request.lease + request.delay))),
        ("waiter_lease", Value::Int(micros(request.waiter_lease + request.delay))),
        ("note", Value::Bytes(request.note.as_str().as_bytes())),
        ("epoch", Value::Int(u16::from(request.epoch).into())),
    ]);
    let leases = (request.lease, request.waiter_lease);
    client
        .verbs
        .ask(Lane::Verb, &sql, |answer| {
            let row = Cells(answer.one()?);
            // Nothing happened where this is an error.
            request.epoch.next(row.int(3)?)?;
            Ok(found(&row, 0, request.holder, leases)?.standing())
        })
        .await
}
