//! Renewing entries, and raising the counter behind one.

use std::collections::HashSet;

use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket, TokenEpoch};

use super::keys::{buckets, key};
use super::line::{Cells, found};
use super::pool::{Answer, Client};
use super::sql::{Value, list};
use crate::pool::Lane;
use crate::value::{micros, protocol};

pub(super) async fn renew(client: &Client, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let mut answers = Vec::with_capacity(due.len());
    let mut rest = due;
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(batch(rest));
        match renew_batch(client, batch).await {
            Ok(renewed) => answers.extend(renewed.into_iter().map(Ok)),
            Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
        }
        rest = later;
    }
    answers
}

/// How many of the first go into one request: in none an entry comes twice, because an update takes only one lease for each.
fn batch(due: &[Renewal]) -> usize {
    let mut seen = HashSet::new();
    let keys = due.iter().map(|renewal| (&renewal.ticket.name, renewal.ticket.holder));
    keys.take_while(|key| seen.insert(*key)).count()
}

async fn renew_batch(client: &Client, due: &[Renewal]) -> Result<Vec<Renewed>> {
    let mut names: Vec<_> = due.iter().map(|renewal| key(&renewal.ticket.name)).collect();
    let row = |(item, (renewal, name)): (usize, (&Renewal, &String))| {
        client.sql.due.fill(&[
            ("item", Value::Int(i64::try_from(item).unwrap_or(0))),
            ("name", Value::Bytes(name.as_bytes())),
            ("holder", Value::Bytes(&renewal.ticket.holder.as_u128().to_be_bytes())),
            ("lease", Value::Int(micros(renewal.lease + renewal.ticket.delay))),
            ("waiter_lease", Value::Int(micros(renewal.waiter_lease + renewal.ticket.delay))),
        ])
    };
    let rows: Vec<_> = due.iter().zip(&names).enumerate().map(row).collect();
    names.sort_unstable();
    names.dedup();
    let sql = client.sql.renew.fill(&[
        ("names", Value::Part(&list(&names))),
        ("buckets", Value::Part(&buckets(&names))),
        ("due", Value::Part(&rows.join("UNION ALL "))),
    ]);
    client.verbs.ask(Lane::Renew, &sql, |answer| read(answer, due)).await
}

/// The answers by item; an item without a row is not held.
fn read(answer: &Answer, due: &[Renewal]) -> Result<Vec<Renewed>> {
    let mut answers = vec![Renewed::NotHeld; due.len()];
    for row in answer.rows.iter().map(Cells) {
        let item = usize::try_from(row.int(0)?).unwrap_or(usize::MAX);
        let (Some(answer), Some(due)) = (answers.get_mut(item), due.get(item)) else {
            return Err(protocol("an answer to nothing"));
        };
        *answer = found(&row, 1, due.ticket.holder, (due.lease, due.waiter_lease))?.renewed();
    }
    Ok(answers)
}

pub(super) async fn raise(client: &Client, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let (key, holder) = (key(&ticket.name), ticket.holder.as_u128().to_be_bytes());
    let sql = client.sql.raise.fill(&[
        ("name", Value::Bytes(key.as_bytes())),
        ("holder", Value::Bytes(&holder)),
        ("number", Value::Int(token.get())),
    ]);
    client
        .verbs
        .ask(Lane::Verb, &sql, |answer| {
            let row = Cells(answer.one()?);
            if row.int(0)? == 0 {
                return Ok(Raise::NotHeld);
            }
            TokenEpoch::of(row.int(1)?).check_raise(token)?;
            Ok(Raise::Raised)
        })
        .await
}
