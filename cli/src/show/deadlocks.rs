//! `deadlocks`: clients that wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clap::Parser;
use onelock::{EntryView, FencingToken, Locks, Mode, Snapshot};
use serde::Serialize;

use super::lines::{Illegible, lines, names};
use super::millis;
use crate::args::Name;
use crate::exit::{EXIT_CODES, Exit, Failure, Outcome};
use crate::output::{clean, human, json, line, say};
use crate::store;

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DeadlocksArgs {
    /// Only names that start with this.
    #[arg(default_value = "", value_parser = Name)]
    prefix: String,
    /// Print one JSON object a line, one for each circle.
    #[arg(long)]
    json: bool,
}

/// One client waits for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Wait {
    client: String,
    name: String,
    token: FencingToken,
    #[serde(rename = "age_ms", serialize_with = "millis")]
    age: Option<Duration>,
    behind: String,
    behind_token: FencingToken,
    /// Whether the other one holds the lock; else it is only ahead in the line.
    behind_holds: bool,
}

pub(crate) async fn deadlocks(url: Option<String>, args: DeadlocksArgs) -> Outcome {
    onelock::name::check_prefix(&args.prefix)?;
    let (circles, illegible) = store::with(url, async |locks| find(locks, &args.prefix).await).await?;
    for (circle, number) in circles.iter().zip(1..) {
        if args.json {
            json(&serde_json::json!({ "circle": circle }))?;
            continue;
        }
        line(format_args!("deadlock {number}:"))?;
        for wait in circle {
            let age = wait.age.map(|age| format!(" for {}", human(age))).unwrap_or_default();
            let has = if wait.behind_holds { "holds it" } else { "is ahead in line" };
            line(format_args!(
                "  {} waits for {}{age} (token {}); {} {has} (token {})",
                clean(&wait.client),
                clean(&wait.name),
                wait.token,
                clean(&wait.behind),
                wait.behind_token
            ))?;
        }
    }
    for (listed, error) in &illegible {
        say(format_args!("{} cannot be read: {error}", clean(listed.name.as_str())));
    }
    if circles.is_empty() && illegible.is_empty() && !args.json {
        line(format_args!("no deadlock"))?;
    }
    Ok(match circles.is_empty() {
        false => Exit::NO,
        true if illegible.is_empty() => Exit::OK,
        // There may be one where nobody could look.
        true => Exit::STORE,
    })
}

/// The circles that stood between two looks, and what could not be read.
async fn find(locks: &Locks, prefix: &str) -> Result<(Vec<Vec<Wait>>, Vec<Illegible>), Failure> {
    let key = |wait: &Wait| (wait.name.clone(), wait.token, wait.behind_token);
    let first: BTreeSet<_> = look(locks, prefix).await?.0.iter().map(key).collect();
    let (mut still, illegible) = look(locks, prefix).await?;
    still.retain(|wait| first.contains(&key(wait)));
    Ok((circles(still), illegible))
}

async fn look(locks: &Locks, prefix: &str) -> Result<(Vec<Wait>, Vec<Illegible>), Failure> {
    let waited = names(locks, prefix).await?.into_iter().filter(|listed| listed.waiters > 0);
    let (lines, illegible) = lines(locks, waited).await?;
    Ok((lines.iter().flat_map(waits).collect(), illegible))
}

/// Who waits for whom in one line: each waiter for the holders that it cannot share the lock with; where there are none, for the
/// last such waiter ahead. All others ahead wait for the same holders.
fn waits(line: &Snapshot) -> Vec<Wait> {
    let mut found = Vec::new();
    for (at, waiter) in line.waiters.iter().enumerate() {
        let blocking = |other: &&EntryView| !other.note.is_empty() && blocks(line, waiter, other);
        let mut others: Vec<_> = line.holders.iter().filter(blocking).map(|other| (other, true)).collect();
        if others.is_empty() {
            others.extend(line.waiters.iter().take(at).rfind(blocking).map(|other| (other, false)));
        }
        for (other, behind_holds) in others {
            if let (Some(client), Some(behind)) = (client(&waiter.note), client(&other.note))
                // Many may have a note that somebody chose: that it waits for itself says nothing.
                && (client != behind || place(&client).is_some())
            {
                let (name, token, behind_token) = (line.name.to_string(), waiter.token, other.token);
                found.push(Wait { client, name, token, age: waiter.age, behind, behind_token, behind_holds });
            }
        }
    }
    found
}

/// Whether `waiter` cannot hold before `other` is gone. Of several holders of permits any one may leave first.
fn blocks(line: &Snapshot, waiter: &EntryView, other: &EntryView) -> bool {
    match (waiter.mode, other.mode) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Permit { .. }, Mode::Permit { .. }) => {
            line.holders.len() == 1 && line.holders.first() == Some(other)
        }
        _ => true,
    }
}

/// The client that a note names: `host:process`, with or without a user before and a command behind, where
/// `process/outermost` is a run inside another; else the note as it is.
fn client(note: &str) -> Option<String> {
    let word = note.split(' ').next().unwrap_or_default();
    let place = word.split_once('@').map_or(word, |(_, place)| place);
    self::place(place).or_else(|| (!note.is_empty()).then(|| note.to_owned()))
}

fn place(text: &str) -> Option<String> {
    let (host, process) = text.rsplit_once(':')?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let outermost = process.rsplit('/').next().filter(|_| process.split('/').all(number))?;
    Some(format!("{host}:{outermost}"))
}

/// A shortest circle of each group of clients that wait for each other.
fn circles(mut waits: Vec<Wait>) -> Vec<Vec<Wait>> {
    let mut found = Vec::new();
    loop {
        let all = waits.iter().map(|wait| (wait.client.clone(), wait.behind.clone()));
        let (clients, others): (BTreeSet<_>, BTreeSet<_>) = all.unzip();
        let Some(start) = clients.first() else { return found };
        // In a circle each waits and is waited for.
        let count = waits.len();
        waits.retain(|wait| clients.contains(&wait.behind) && others.contains(&wait.client));
        if waits.len() < count {
            continue;
        }
        match shortest(&waits, start) {
            Some(circle) => {
                waits.retain(|wait| circle.iter().all(|part| part.client != wait.client));
                found.push(circle);
            }
            // In no circle.
            None => waits.retain(|wait| wait.client != *start && wait.behind != *start),
        }
    }
}

/// The shortest way from `start` back to it.
fn shortest(waits: &[Wait], start: &str) -> Option<Vec<Wait>> {
    let mut by: BTreeMap<&str, Vec<&Wait>> = BTreeMap::new();
    for wait in waits {
        by.entry(&wait.client).or_default().push(wait);
    }
    let (mut came, mut queue) = (BTreeMap::new(), VecDeque::from([start]));
    while let Some(at) = queue.pop_front() {
        for wait in by.get(at).into_iter().flatten().copied() {
            if came.contains_key(wait.behind.as_str()) {
                continue;
            }
            came.insert(wait.behind.as_str(), wait);
            queue.push_back(&wait.behind);
            if wait.behind == start {
                let mut circle = vec![wait];
                while let Some(last) = circle.last().filter(|last| last.client != start) {
                    circle.push(came.get(last.client.as_str())?);
                }
                return Some(circle.into_iter().rev().cloned().collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use onelock::LockName;

    fn entry(token: i64, note: &str, mode: Mode) -> EntryView {
        let token = FencingToken::new(token).unwrap();
        EntryView::new(token, mode, note)
    }

    fn line(name: &str, holders: Vec<EntryView>, waiters: Vec<EntryView>) -> Snapshot {
        Snapshot::new(LockName::new(name).unwrap(), holders, waiters)
    }

    fn exclusive(name: &str, clients: &[&str]) -> Snapshot {
        let mut entries: Vec<_> =
            clients.iter().zip(1..).map(|(client, at)| entry(at, client, Mode::Exclusive)).collect();
        line(name, entries.drain(..1).collect(), entries)
    }

    fn found(lines: &[Snapshot]) -> Vec<Vec<String>> {
        let circles = circles(lines.iter().flat_map(waits).collect());
        circles.iter().map(|circle| circle.iter().map(|wait| wait.client.clone()).collect()).collect()
    }

    #[test]
    fn circles_are_found_and_chains_are_none() {
        assert!(found(&[exclusive("a", &["h:1", "h:2"]), exclusive("b", &["h:2", "h:3"])]).is_empty());
        let two = [
            exclusive("a", &["h:1", "h:2"]),
            exclusive("b", &["h:2", "h:1"]),
            exclusive("c", &["h:1", "h:9"]),
        ];
        assert_eq!(found(&two), [["h:1", "h:2"]]);
        let three: Vec<_> = (1..=3)
            .map(|n| exclusive(&format!("n{n}"), &[&format!("h:{n}"), &format!("h:{}", n % 3 + 1)]))
            .collect();
        assert_eq!(found(&three)[0].len(), 3);
        assert_eq!(found(&[exclusive("a", &["h:1", "h:1"])]), [["h:1"]], "one that waits for itself");
        let apart =
            [two.to_vec(), vec![exclusive("d", &["h:5", "h:6"]), exclusive("e", &["h:6", "h:5"])]].concat();
        assert_eq!(found(&apart).len(), 2);
    }

    #[test]
    fn whom_one_can_share_with_is_not_waited_for() {
        let shared = |token, note| entry(token, note, Mode::Shared);
        let writer = entry(2, "h:9", Mode::Exclusive);
        let readers = line("a", vec![shared(1, "h:1")], vec![writer, shared(3, "h:2")]);
        let behind: Vec<_> = waits(&readers).into_iter().map(|wait| (wait.client, wait.behind)).collect();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(behind, [pair("h:9", "h:1"), pair("h:2", "h:9")]);
        let permit = |token, note| entry(token, note, Mode::permit(2).unwrap());
        let pool = line("p", vec![permit(1, "h:1"), permit(2, "h:2")], vec![permit(3, "h:3")]);
        assert!(waits(&pool).is_empty(), "either may leave first");
    }

    #[test]
    fn a_crowd_behind_one_lock_costs_a_wait_each() {
        let clients: Vec<_> = (0..3_000).map(|number| format!("h:{number}")).collect();
        let mut crowd: Vec<_> = clients.iter().map(String::as_str).collect();
        let line = exclusive("a", &crowd);
        assert_eq!(waits(&line).len(), 2_999);
        assert!(found(std::slice::from_ref(&line)).is_empty());
        crowd.reverse();
        assert_eq!(found(&[line, exclusive("b", &crowd)]), [["h:0", "h:2999"]]);
    }

    #[test]
    fn notes_name_clients() {
        for (note, expected) in [
            ("host:12", Some("host:12")),
            ("me@host:12 sleep 5", Some("host:12")),
            ("me@host:12/7 sleep", Some("host:7")),
            ("host:12x", Some("host:12x")),
            ("the nightly job", Some("the nightly job")),
            ("", None),
        ] {
            assert_eq!(client(note).as_deref(), expected, "{note}");
        }
    }
}
