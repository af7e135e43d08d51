//! `status`: the line of a name.

use clap::Parser;
use onelock::LockName;
use serde::Serialize;

use super::Entry;
use crate::args::Name;
use crate::exit::{Exit, Outcome};
use crate::output::{human, json, line, table};
use crate::store;

#[derive(Debug, Parser)]
pub(crate) struct StatusArgs {
    /// The name of the lock.
    #[arg(value_parser = Name)]
    name: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StatusJson {
    name: LockName,
    held: bool,
    holders: Vec<Entry>,
    waiters: Vec<Waiter>,
}

#[derive(Serialize)]
struct Waiter {
    /// In the line of waiters, from 1.
    place: usize,
    #[serde(flatten)]
    entry: Entry,
}

pub(crate) async fn status(url: Option<String>, args: StatusArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let snapshot = store::with(url, async |locks| Ok(locks.inspect(&name).await?)).await?;
    let held = snapshot.is_held();
    let (holders, waiters) = Entry::of(snapshot);
    if args.json {
        let waiters = waiters.into_iter().zip(1..).map(|(entry, place)| Waiter { place, entry }).collect();
        json(&StatusJson { name, held, holders, waiters })?;
    } else if !held && waiters.is_empty() {
        line(format_args!("{name} is free"))?;
    } else {
        let holders = holders.iter().map(|entry| row("holds".into(), entry));
        let waits = |(entry, place)| row(format!("waits, place {place}"), entry);
        let rows = holders.chain(waiters.iter().zip(1..).map(waits));
        table(&["STATE", "TOKEN", "MODE", "AGE", "LEASE LEFT", "NOTE"], rows)?;
    }
    Ok(if held { Exit::OK } else { Exit::NO })
}

fn row(state: String, entry: &Entry) -> Vec<String> {
    let (token, unknown) = match entry.token {
        Some(token) => (token.to_string(), "?"),
        None => ("-".into(), "no end"),
    };
    let age = entry.age.map_or_else(|| "?".into(), human);
    let left = entry.expires_in.map_or_else(|| unknown.into(), human);
    vec![state, token, entry.word(), age, left, entry.note.clone()]
}
