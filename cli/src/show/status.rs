//! `status`: the line of a name.

use std::time::Duration;

use clap::Parser;
use onelock::{EntryView, LockName, Mode};
use serde::Serialize;

use super::{EntryJson, FOREIGN, mode_word};
use crate::args::Name;
use crate::exit::{Exit, Outcome};
use crate::output::{human, json, line, ordinal, table};
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
struct StatusJson<'a> {
    name: &'a str,
    held: bool,
    holders: Vec<EntryJson<'a>>,
    waiters: Vec<WaiterJson<'a>>,
}

#[derive(Serialize)]
struct WaiterJson<'a> {
    /// In the line of waiters, from 1.
    place: usize,
    #[serde(flatten)]
    entry: EntryJson<'a>,
}

pub(crate) async fn status(url: Option<String>, args: StatusArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let locks = store::connect(url).await?;
    let snapshot = locks.inspect(&name).await;
    store::close(&locks).await;
    let snapshot = snapshot?;
    let held = snapshot.is_held();
    let exit = if held { Exit::OK } else { Exit::NO };
    if args.json {
        let waiter = |(entry, place)| WaiterJson { place, entry: EntryJson::from(entry) };
        json(&StatusJson {
            name: name.as_str(),
            held,
            holders: (snapshot.foreign.iter().map(|view| EntryJson::foreign(view.expires_in)))
                .chain(snapshot.holders.iter().map(EntryJson::from))
                .collect(),
            waiters: snapshot.waiters.iter().zip(1..).map(waiter).collect(),
        })?;
        return Ok(exit);
    }
    if !held && snapshot.waiters.is_empty() {
        line(format_args!("{name} is free"))?;
        return Ok(exit);
    }
    let time = |time: Option<Duration>| time.map_or_else(|| "?".into(), human);
    let row = |state: String, entry: &EntryView| {
        let (age, left) = (time(entry.age), time(entry.expires_in));
        vec![state, entry.token.to_string(), mode_word(entry.mode), age, left, entry.note.clone()]
    };
    let foreign = snapshot.foreign.iter().map(|view| {
        let left = view.expires_in.map_or_else(|| "no end".into(), human);
        ["holds", "-", &mode_word(Mode::Exclusive), "?", &left, FOREIGN].map(String::from).to_vec()
    });
    let holders = snapshot.holders.iter().map(|entry| row("holds".into(), entry));
    let waits = |(entry, place)| row(format!("waits, {} in line", ordinal(place)), entry);
    let waiters = snapshot.waiters.iter().zip(1..).map(waits);
    table(&["STATE", "TOKEN", "MODE", "AGE", "LEASE LEFT", "NOTE"], foreign.chain(holders).chain(waiters))?;
    Ok(exit)
}
