//! Joining a line.

use onelock_core::{Request, Result, Standing};

use super::keys::key;
use super::line::{Found, found, micros, one, room_and_weight};
use super::pool::{Lane, Pool};
use super::sql::Value;

pub(super) async fn acquire(pool: &Pool, request: &Request) -> Result<Standing> {
    let (key, holder) = (key(&request.name), request.holder.as_u128().to_be_bytes());
    let (name, mode) = (Value::Bytes(key.as_bytes()), request.mode.to_string());
    let (room, weight) = room_and_weight(request.mode);
    let busy = if request.queue { "NULL".into() } else { pool.sql.busy.fill(&[("name", name)]) };
    let sql = pool.sql.acquire.fill(&[
        ("busy", Value::Part(&busy)),
        ("name", name),
        ("holder", Value::Bytes(&holder)),
        ("mode", Value::Bytes(mode.as_bytes())),
        ("room", Value::Int(room)),
        ("weight", Value::Int(weight)),
        ("queue", Value::Int(request.queue.into())),
        ("lease", Value::Int(micros(request.lease, request.delay))),
        ("waiter_lease", Value::Int(micros(request.waiter_lease, request.delay))),
        ("note", Value::Bytes(request.note.as_str().as_bytes())),
        ("epoch", Value::Int(u16::from(request.epoch).into())),
    ]);
    let leases = (request.lease, request.waiter_lease);
    pool.ask(Lane::Verb, &sql, |answer| {
        let row = one(&answer.rows)?;
        // Nothing happened where this is an error.
        request.epoch.next(row.int(3)?)?;
        Ok(match found(&row, 0, request.holder, leases)? {
            Found::Held(grant) => Standing::Held(grant),
            Found::Waiting(place) => Standing::Waiting(place),
            Found::Missing(busy) => Standing::Busy(busy),
        })
    })
    .await
}
