//! Renewing entries, and raising the counter behind one.

use std::collections::HashSet;

use onelock_core::{FencingToken, Raise, Renewal, Renewed, Result, Ticket, TokenEpoch};

use super::keys::{buckets, key};
use super::line::{Cells, Found, found, micros, one, protocol};
use super::pool::{Answer, Lane, Pool};
use super::sql::Value;

pub(super) async fn renew(pool: &Pool, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let mut answers = Vec::with_capacity(due.len());
    let mut rest = due;
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(batch(rest));
        match renew_batch(pool, batch).await {
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

async fn renew_batch(pool: &Pool, due: &[Renewal]) -> Result<Vec<Renewed>> {
    let keys: Vec<_> = due.iter().map(|renewal| key(&renewal.ticket.name)).collect();
    let mut rows = String::new();
    for (item, (renewal, key)) in due.iter().zip(&keys).enumerate() {
        let (ticket, holder) = (&renewal.ticket, renewal.ticket.holder.as_u128().to_be_bytes());
        // The names of the columns are those of the first row.
        let mut before = if item == 0 { "SELECT " } else { " UNION ALL SELECT " };
        for (column, value) in [
            ("item", Value::Int(i64::try_from(item).unwrap_or(0))),
            ("name", Value::Bytes(key.as_bytes())),
            ("holder", Value::Bytes(&holder)),
            ("lease", Value::Int(micros(renewal.lease, ticket.delay))),
            ("waiter_lease", Value::Int(micros(renewal.waiter_lease, ticket.delay))),
        ] {
            rows.push_str(std::mem::replace(&mut before, ","));
            value.write(&mut rows);
            rows.push_str(" AS ");
            rows.push_str(column);
        }
    }
    let mut names: Vec<_> = keys.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let values = [
        ("names", Value::List(&names)),
        ("buckets", Value::Part(&buckets(&names))),
        ("due", Value::Part(&rows)),
    ];
    pool.ask(Lane::Renew, &pool.sql.renew.fill(&values), |answer| read(answer, due)).await
}

/// The answers by item; an item without a row is not held.
fn read(answer: &Answer, due: &[Renewal]) -> Result<Vec<Renewed>> {
    let mut answers = vec![Renewed::NotHeld; due.len()];
    for row in answer.rows.iter().map(Cells) {
        let item = usize::try_from(row.int(0)?).unwrap_or(usize::MAX);
        let (Some(answer), Some(due)) = (answers.get_mut(item), due.get(item)) else {
            return Err(protocol("an answer to nothing"));
        };
        *answer = match found(&row, 1, due.ticket.holder, (due.lease, due.waiter_lease))? {
            Found::Held(grant) => Renewed::Held(grant),
            Found::Waiting(place) => Renewed::Waiting(place),
            Found::Missing(_) => Renewed::NotHeld,
        };
    }
    Ok(answers)
}

pub(super) async fn raise(pool: &Pool, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let (key, holder) = (key(&ticket.name), ticket.holder.as_u128().to_be_bytes());
    let sql = pool.sql.raise.fill(&[
        ("name", Value::Bytes(key.as_bytes())),
        ("holder", Value::Bytes(&holder)),
        ("number", Value::Int(token.get())),
    ]);
    pool.ask(Lane::Verb, &sql, |answer| {
        let row = one(&answer.rows)?;
        if row.int(0)? == 0 {
            return Ok(Raise::NotHeld);
        }
        TokenEpoch::of(row.int(1)?).check_raise(token)?;
        Ok(Raise::Raised)
    })
    .await
}
