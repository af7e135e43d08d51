//! Renewing entries: those of one name share a look at its line.

use std::collections::BTreeMap;
use std::time::Duration;

use onelock_core::{LockName, Renewal, Renewed, Result};

use super::error::Fault;
use super::line::Transaction;

/// Renews each item by itself; the answers are in the order of `due`.
pub(super) fn renew(tx: &mut Transaction<'_>, due: &[Renewal]) -> Result<Vec<Result<Renewed>>, Fault> {
    let mut names: BTreeMap<&LockName, Vec<usize>> = BTreeMap::new();
    for (i, renewal) in due.iter().enumerate() {
        names.entry(&renewal.ticket.name).or_default().push(i);
    }
    let mut answers = vec![Ok(Renewed::NotHeld); due.len()];
    for (name, items) in names {
        let holders: Vec<_> = items.iter().map(|&i| due[i].ticket.holder).collect();
        let now = tx.now;
        let renewed = tx.with_line(name, &holders, Duration::ZERO, |line| {
            items.iter().for_each(|&i| answers[i] = Ok(line.renew(now, &due[i])));
        });
        match renewed {
            Err(Fault::Verb(error)) => items.iter().for_each(|&i| answers[i] = Err(error.clone())),
            renewed => renewed?,
        }
    }
    Ok(answers)
}
