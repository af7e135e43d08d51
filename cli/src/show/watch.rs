//! `watch`: the changes of a line, one after the other.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::Parser;
use onelock::{EntryView, FencingToken, LockName, Locks, Snapshot};
use serde::Serialize;

use super::{Away, EntryJson, FOREIGN, mode_word, moment};
use crate::args::Name;
use crate::exit::{EXIT_CODES, Failure, Outcome};
use crate::output::{clean, json, line};
use crate::store;

#[derive(Debug, Parser)]
#[command(
    after_help = EXIT_CODES,
    long_about = "Print the changes of a line, one a line, until it is ended.\n\n\
        First who holds and who waits; then who `joined` the line, `took` the lock, `left` the line without it, and whose \
        hold `ended` (given back, evicted or expired: the store does not say which), and when the name is `free`. What \
        comes and goes between two looks is not seen."
)]
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
    entry: Option<EntryJson<'a>>,
}

pub(crate) async fn watch(url: Option<String>, args: WatchArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let locks = store::connect(url).await?;
    let never = follow(&locks, &name, &args).await;
    store::close(&locks).await;
    match never? {}
}

async fn follow(
    locks: &Locks,
    name: &LockName,
    args: &WatchArgs,
) -> Result<std::convert::Infallible, Failure> {
    let (mut seen, mut away) = (None, Away::default());
    loop {
        if let Some(snapshot) = away.over(locks.inspect(name).await)? {
            let now = Line::of(snapshot);
            for (event, entry) in now.since(seen.as_ref()) {
                tell(name, event, entry, args.json)?;
            }
            seen = Some(now);
        }
        tokio::time::sleep(args.interval).await;
    }
}

fn tell(
    name: &LockName,
    event: &'static str,
    entry: Option<Entry<'_>>,
    as_json: bool,
) -> Result<(), Failure> {
    let at = moment(SystemTime::now());
    if as_json {
        let entry = entry.map(|entry| match entry {
            Entry::Ours(view) => EntryJson::from(view),
            Entry::Foreign => EntryJson::foreign(None),
        });
        json(&EventJson { at, event, name: name.as_str(), entry })?;
        return Ok(());
    }
    let text = match entry {
        None => String::new(),
        Some(Entry::Foreign) => FOREIGN.into(),
        Some(Entry::Ours(view)) => {
            format!("token {}  {}  {}", view.token, mode_word(view.mode), clean(&view.note))
        }
    };
    line(format_args!("{}", format!("{at}  {event:<6}  {text}").trim_end()))?;
    Ok(())
}

/// Whom an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry<'a> {
    Ours(&'a EntryView),
    Foreign,
}

/// A line, by token.
struct Line {
    holders: BTreeMap<FencingToken, EntryView>,
    waiters: BTreeMap<FencingToken, EntryView>,
    foreign: bool,
}

impl Line {
    fn of(snapshot: Snapshot) -> Self {
        let by_token =
            |entries: Vec<EntryView>| entries.into_iter().map(|entry| (entry.token, entry)).collect();
        Self {
            foreign: !snapshot.foreign.is_empty(),
            holders: by_token(snapshot.holders),
            waiters: by_token(snapshot.waiters),
        }
    }

    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && !self.foreign
    }

    /// What has happened since `before`; all that there is where nothing was seen before.
    fn since<'a>(&'a self, before: Option<&'a Self>) -> Vec<(&'static str, Option<Entry<'a>>)> {
        let ours = |event, entry| (event, Some(Entry::Ours(entry)));
        let mut events = Vec::new();
        let Some(before) = before else {
            events.extend(self.foreign.then_some(("holds", Some(Entry::Foreign))));
            events.extend(self.holders.values().map(|entry| ours("holds", entry)));
            events.extend(self.waiters.values().map(|entry| ours("waits", entry)));
            events.extend(self.is_free().then_some(("free", None)));
            return events;
        };
        let gone =
            |token: &FencingToken| !self.holders.contains_key(token) && !self.waiters.contains_key(token);
        let gone = |(token, entry)| gone(token).then_some(entry);
        events.extend((before.foreign && !self.foreign).then_some(("ended", Some(Entry::Foreign))));
        events.extend(before.holders.iter().filter_map(gone).map(|entry| ours("ended", entry)));
        events.extend(before.waiters.iter().filter_map(gone).map(|entry| ours("left", entry)));
        events.extend((self.foreign && !before.foreign).then_some(("took", Some(Entry::Foreign))));
        let took = self.holders.iter().filter(|(token, _)| !before.holders.contains_key(token));
        events.extend(took.map(|(_, entry)| ours("took", entry)));
        let joined = self.waiters.iter().filter(|(token, _)| !before.waiters.contains_key(token));
        events.extend(joined.map(|(_, entry)| ours("joined", entry)));
        events.extend((self.is_free() && !before.is_free()).then_some(("free", None)));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onelock::Mode;

    fn line(holders: &[i64], waiters: &[i64]) -> Line {
        let view = |token: &i64| EntryView::new(FencingToken::new(*token).unwrap(), Mode::Exclusive, "");
        let views = |tokens: &[i64]| tokens.iter().map(view).collect();
        Line::of(Snapshot::new(LockName::new("a").unwrap(), views(holders), views(waiters)))
    }

    fn told(before: Option<&Line>, now: &Line) -> Vec<String> {
        let word = |(event, entry): (&str, Option<Entry<'_>>)| match entry {
            Some(Entry::Ours(view)) => format!("{event} {}", view.token),
            _ => event.to_owned(),
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
