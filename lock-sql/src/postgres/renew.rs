//! Renewing entries, and raising the counter behind one.

use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket};
use sqlx::Row as _;

use super::backend::Shared;
use super::error::explain;
use super::line::read_all_found;
use super::sql::{Value, array, hexed, plain};
use crate::pool::Lane;
use crate::value::{blob, micros};

pub(super) async fn renew(shared: &Shared, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let renewed = renew_together(shared, due).await;
    renewed.unwrap_or_else(|error| vec![Err(error); due.len()])
}

async fn renew_together(shared: &Shared, due: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
    // Those of one name together, and in the order of its line: as those who promote lock the rows.
    let mut order: Vec<_> = due.iter().enumerate().collect();
    order.sort_by_key(|(_, renewal)| (&renewal.ticket.name, renewal.ticket.token));
    let sorted: Vec<_> = order.iter().map(|(_, renewal)| *renewal).collect();
    let times = |time: fn(&Renewal) -> _| array(sorted.iter().map(|r| micros(time(r))));
    let call = shared.sql.renew.call([
        array(sorted.iter().map(|r| r.ticket.name.encoded())),
        Value::Blobs(sorted.iter().map(|r| blob(r.ticket.holder)).collect()),
        times(|r| r.lease),
        times(|r| r.waiter_lease),
        times(|r| r.ticket.delay),
        plain(shared.channel.address()),
    ]);
    let found = shared.pool.ask(Lane::Renew, &call, |answer| read_all_found(answer.one()?, &sorted)).await?;
    let mut answers = vec![Ok(Renewed::NotHeld); due.len()];
    for ((at, renewal), found) in order.into_iter().zip(found) {
        let renewed = found.renewed();
        shared.inbox.renewed(renewal.ticket.holder, &renewed);
        answers[at] = Ok(renewed);
    }
    Ok(answers)
}

/// Lifts the counter behind an entry that holds.
pub(super) async fn raise(shared: &Shared, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let values = [plain(ticket.name.encoded()), hexed(blob(ticket.holder)), plain(token.get())];
    let call = shared.sql.raise.call(values);
    shared
        .pool
        .ask(Lane::Verb, &call, |answer| {
            let raised: bool = answer.one()?.try_get(0).map_err(explain)?;
            Ok(if raised { Raise::Raised } else { Raise::NotHeld })
        })
        .await
}
