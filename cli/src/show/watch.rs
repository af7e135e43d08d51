//! `watch`: the changes of a line, one after the other.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use clap::Parser;
use onelock::{FencingToken, LockName, Locks, Snapshot};
use serde::Serialize;

use super::{Entry, moment};
use crate::args::Name;
use crate::exit::{EXIT_CODES, Failure, Outcome};
use crate::output::{clean, json, line, reader_left, say};
use crate::store;

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct WatchArgs {
    /// The name of the lock.
    #[arg(value_parser = Name)]
    name: String,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = crate::args::period)]
    interval: Duration,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct EventJson<'a> {
    at: String,
    event: &'static str,
    name: &'a str,
    /// None of `free`.
    #[serde(flatten)]
    entry: Option<&'a Entry>,
}

pub(crate) async fn watch(url: Option<String>, args: WatchArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    match store::with(url, async |locks| follow(locks, &name, &args).await).await? {}
}

async fn follow(locks: &Locks, name: &LockName, args: &WatchArgs) -> Result<Infallible, Failure> {
    let (mut seen, mut away) = (None, false);
    loop {
        match locks.inspect(name).await {
            Err(error) if error.is_retryable() => {
                // Once for each outage.
                if !std::mem::replace(&mut away, true) {
                    say(format_args!("waiting for the store: {error}"));
                }
            }
            looked => {
                let now = LineView::of(looked?);
                for (event, entry) in now.since(seen.as_ref()) {
                    tell(name, event, entry, args.json)?;
                }
                (seen, away) = (Some(now), false);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            left = reader_left() => return Err(left),
        }
    }
}

fn tell(name: &LockName, event: &'static str, entry: Option<&Entry>, as_json: bool) -> Result<(), Failure> {
    let at = moment(SystemTime::now());
    if as_json {
        return Ok(json(&EventJson { at, event, name: name.as_str(), entry })?);
    }
    let text = match entry {
        None => String::new(),
        Some(Entry { token: None, note, .. }) => note.clone(),
        Some(entry @ Entry { token: Some(token), .. }) => {
            format!("token {token}  {}  {}", entry.word(), clean(&entry.note))
        }
    };
    Ok(line(format_args!("{}", format!("{at}  {event:<6}  {text}").trim_end()))?)
}

/// Entries by token; of those without one, one stands for all.
type Entries = BTreeMap<Option<FencingToken>, Entry>;

/// A line.
struct LineView {
    holders: Entries,
    waiters: Entries,
}

impl LineView {
    fn of(snapshot: Snapshot) -> Self {
        let by_token = |entries: Vec<Entry>| entries.into_iter().map(|entry| (entry.token, entry)).collect();
        let (holders, waiters) = Entry::of(snapshot);
        Self { holders: by_token(holders), waiters: by_token(waiters) }
    }

    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// What has happened since `before`; all that there is where nothing was seen before.
    fn since<'a>(&'a self, before: Option<&'a Self>) -> Vec<(&'static str, Option<&'a Entry>)> {
        let mut events = Vec::new();
        let mut tell = |event, these: &'a Entries, apart: &[&Entries]| {
            let new = these.iter().filter(|(token, _)| !apart.iter().any(|other| other.contains_key(token)));
            events.extend(new.map(|(_, entry)| (event, Some(entry))));
        };
        if let Some(before) = before {
            tell("ended", &before.holders, &[&self.holders, &self.waiters]);
            tell("left", &before.waiters, &[&self.holders, &self.waiters]);
            tell("took", &self.holders, &[&before.holders]);
            tell("joined", &self.waiters, &[&before.waiters]);
        } else {
            tell("holds", &self.holders, &[]);
            tell("waits", &self.waiters, &[]);
        }
        if self.is_free() && before.is_none_or(|before| !before.is_free()) {
            events.push(("free", None));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onelock::{EntryView, Mode};

    fn line(holders: &[i64], waiters: &[i64]) -> LineView {
        let view = |token: &i64| EntryView::new(FencingToken::new(*token).unwrap(), Mode::Exclusive, "");
        let views = |tokens: &[i64]| tokens.iter().map(view).collect();
        LineView::of(Snapshot::new(LockName::new("a").unwrap(), views(holders), views(waiters)))
    }

    fn told(before: Option<&LineView>, now: &LineView) -> Vec<String> {
        let word = |(event, entry): (&str, Option<&Entry>)| match entry.and_then(|entry| entry.token) {
            Some(token) => format!("{event} {token}"),
            None => event.to_owned(),
        };
        now.since(before).into_iter().map(word).collect()
    }

    #[test]
    fn each_change_is_told_once_and_in_order() {
        let (free, first, second) = (line(&[], &[]), line(&[4], &[5, 6]), line(&[6], &[7]));
        assert_eq!(told(None, &free), ["free"]);
        assert_eq!(told(None, &first), ["holds 4", "waits 5", "waits 6"]);
        assert_eq!(told(Some(&free), &first), ["took 4", "joined 5", "joined 6"]);
        assert_eq!(told(Some(&first), &second), ["ended 4", "left 5", "took 6", "joined 7"]);
        assert_eq!(told(Some(&second), &free), ["ended 6", "left 7", "free"]);
        assert!(told(Some(&free), &free).is_empty() && told(Some(&first), &first).is_empty());
    }
}
