//! Renewing entries, and raising the counter behind one.

use futures_util::future::FutureExt as _;
use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket};

use super::client::Client;
use super::pool::Postgres;
use super::sql::{array, blobs, hexed};
use crate::divided::divided;
use crate::inbox::Inbox;
use crate::pool::Lane;
use crate::value::{Found, blob, micros, protocol};

pub(super) async fn renew(client: &Client, inbox: &Inbox, due: &[Renewal]) -> Vec<Result<Renewed>> {
    divided::<Postgres>(due, &|part| renew_together(client, inbox, part, due.len()).boxed()).await
}

async fn renew_together(client: &Client, inbox: &Inbox, due: &[Renewal], of: usize) -> Result<Vec<Renewed>> {
    // Those of one name together, and in the order of its line, in which a promotion locks the rows.
    let mut order: Vec<_> = due.iter().enumerate().collect();
    order.sort_by_key(|(_, renewal)| (&renewal.ticket.name, renewal.ticket.token));
    let times = |time: fn(&Renewal) -> _| array(order.iter().map(|(_, r)| micros(time(r))));
    let (one, two) = (include_str!("sql/renew.sql"), include_str!("sql/renew_and_flush.sql"));
    let values = [
        array(order.iter().map(|(_, r)| r.ticket.name.encoded())),
        blobs(order.iter().map(|(_, r)| r.ticket.holder)),
        times(|r| r.lease),
        times(|r| r.waiter_lease),
        times(|r| r.ticket.delay),
        client.channel.address().to_owned(),
    ];
    let call = client.schema.flushed(one, two, values);
    let (tokens, retries, whose): (Vec<_>, Vec<_>, Vec<Vec<u8>>) =
        client.pool.ask(Lane::Renew(of), &call, |answer| answer.one()).await?;
    if [whose.len(), tokens.len(), retries.len()] != [due.len(); 3] {
        return Err(protocol("not as many answers as renewals"));
    }
    let mut answers = vec![Renewed::NotHeld; due.len()];
    for ((at, due), (whose, (token, retry))) in
        order.into_iter().zip(whose.iter().zip(tokens.into_iter().zip(retries)))
    {
        let leases = (due.lease, due.waiter_lease);
        let renewed = Found::new((whose, token, retry), due.ticket.holder, leases)?.renewed();
        inbox.renewed(due.ticket.holder, &renewed);
        answers[at] = renewed;
    }
    Ok(answers)
}

/// Lifts the counter behind an entry that holds.
pub(super) async fn raise(client: &Client, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let values = [ticket.name.encoded().into_owned(), hexed(blob(ticket.holder)), token.to_string()];
    let call = client.schema.call(include_str!("sql/raise.sql"), values);
    let (raised,) = client.pool.ask(Lane::Verb, &call, |answer| answer.one()).await?;
    Ok(if raised { Raise::Raised } else { Raise::NotHeld })
}
