//! Renewing entries, and raising the counter behind one.

use futures_util::future::FutureExt as _;
use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket, TokenEpoch};

use super::keys::{buckets, key};
use super::pool::{Answer, Client, MySql};
use super::sql::{Value, list};
use crate::divided::divided;
use crate::pool::Lane;
use crate::value::{Found, blob, micros, protocol};

pub(super) async fn renew(client: &Client, due: &[Renewal]) -> Vec<Result<Renewed>> {
    divided::<MySql>(due, &|part| renew_together(client, part, due.len()).boxed()).await
}

async fn renew_together(client: &Client, due: &[Renewal], of: usize) -> Result<Vec<Renewed>> {
    let mut names: Vec<_> = due.iter().map(|renewal| key(&renewal.ticket.name)).collect();
    let row = |(item, (renewal, name)): (usize, (&Renewal, &Vec<u8>))| {
        let values = [
            ("item", Value::Int(i64::try_from(item).unwrap_or(0))),
            ("name", Value::Bytes(name.clone())),
            ("holder", Value::Bytes(blob(renewal.ticket.holder))),
            ("lease", Value::Int(micros(renewal.lease + renewal.ticket.delay))),
            ("waiter_lease", Value::Int(micros(renewal.waiter_lease + renewal.ticket.delay))),
        ];
        client.call(include_str!("sql/due.sql"), &values).text()
    };
    let rows: Vec<_> = due.iter().zip(&names).enumerate().map(row).collect();
    names.sort_unstable();
    names.dedup();
    let values = [
        ("names", Value::Part(list(&names))),
        ("buckets", Value::Part(buckets(&names))),
        ("due", Value::Part(rows.join("UNION ALL "))),
    ];
    let call = client.call(include_str!("sql/renew.sql"), &values);
    client.verbs.ask(Lane::Renew(of), &call, |answer| read(answer, due)).await
}

/// The answers by item; an item without a row is not held.
fn read(answer: &Answer, due: &[Renewal]) -> Result<Vec<Renewed>> {
    let mut answers = vec![Renewed::NotHeld; due.len()];
    for (item, number, retry, whose) in answer.all::<(i64, _, _, Vec<u8>)>()? {
        let item = usize::try_from(item).unwrap_or(usize::MAX);
        let (Some(answer), Some(due)) = (answers.get_mut(item), due.get(item)) else {
            return Err(protocol("an answer to nothing"));
        };
        let leases = (due.lease, due.waiter_lease);
        *answer = Found::new((&whose, number, retry), due.ticket.holder, leases)?.renewed();
    }
    Ok(answers)
}

pub(super) async fn raise(client: &Client, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let (name, holder) = (Value::Bytes(key(&ticket.name)), Value::Bytes(blob(ticket.holder)));
    let values = [("name", name), ("holder", holder), ("number", Value::Int(token.get()))];
    client
        .ask(include_str!("sql/raise.sql"), &values, |answer| {
            let (ours, last): (i64, _) = answer.one()?;
            if ours != 0 {
                TokenEpoch::of(last).check_raise(token)?;
            }
            Ok(if ours == 0 { Raise::NotHeld } else { Raise::Raised })
        })
        .await
}
