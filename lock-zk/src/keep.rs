//! Renewing: one write through the leader per session and batch, which checks that every node is there; for those that
//! wait, a read of what they wait for. The line itself is read only when that has changed: a waiter costs the same
//! however long its line is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{future, join};
use onelock_core::{Error, ErrorKind, Grant, Place, Renewal, Renewed, Result, Timestamp};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::{ends_session, failed};
use crate::leave::erase_later;
use crate::line::{Line, Stand, Watch};
use crate::look;
use crate::session::Session;
use crate::table::Entry;
use crate::wait::promoted;

/// The most nodes one request checks, and about how many bytes it has: servers may take less than their default of a
/// megabyte.
const BATCH: usize = 256;
const BYTES: usize = 32 * 1024;

struct Item {
    index: usize,
    entry: Arc<Entry>,
    lease: Duration,
    waiter_lease: Duration,
}

/// How many of these share a request.
fn share(items: &[Item]) -> usize {
    let mut bytes = 0;
    let fits = |item: &&Item| {
        bytes += 16 + item.entry.path.len();
        bytes <= BYTES
    };
    items.iter().take(BATCH).take_while(fits).count().max(1)
}

type Answers = Vec<(usize, Result<Renewed>)>;

/// Renews what is due, each session by itself.
pub(crate) async fn renew(core: &Arc<Core>, due: &[Renewal]) -> Vec<Result<Renewed>> {
    if let Err(error) = core.check() {
        return due.iter().map(|_| Err(error.clone())).collect();
    }
    let now = core.target.clock.now();
    let mut answers: Vec<_> = due.iter().map(|_| Ok(Renewed::NotHeld)).collect();
    let mut strangers = Vec::new();
    let mut sessions: HashMap<i64, Vec<Item>> = HashMap::new();
    for (index, renewal) in due.iter().enumerate() {
        let key = (renewal.ticket.name.clone(), renewal.ticket.holder);
        let Some(entry) = core.table.get(&key, now) else {
            strangers.push(index);
            continue;
        };
        let delay = renewal.ticket.delay;
        let longest = entry.session.capacity().saturating_sub(delay);
        if renewal.lease.max(renewal.waiter_lease) > longest {
            answers[index] = Err(too_long(renewal.lease, longest));
            continue;
        }
        let (lease, waiter_lease) = (renewal.lease + delay, renewal.waiter_lease + delay);
        sessions.entry(entry.session.id()).or_default().push(Item { index, entry, lease, waiter_lease });
    }
    let mut batches = Vec::new();
    for mut items in sessions.into_values() {
        while !items.is_empty() {
            let rest = items.split_off(share(&items));
            batches.push(batch(core, std::mem::replace(&mut items, rest)));
        }
    }
    let (batches, strangers) = join!(future::join_all(batches), unknown(core, due, strangers));
    for (index, answer) in batches.into_iter().flatten().chain(strangers) {
        answers[index] = match (answer, due.get(index)) {
            (Ok(answer), Some(renewal)) => Ok(without_delay(answer, renewal.ticket.delay)),
            (answer, _) => answer,
        };
    }
    answers
}

/// Entries that this client does not know: gone, or another client's, which nobody else can renew, because a node belongs
/// to the session that made it.
async fn unknown(core: &Arc<Core>, due: &[Renewal], indices: Vec<usize>) -> Answers {
    let tickets: Vec<_> =
        indices.iter().filter_map(|index| due.get(*index)).map(|renewal| &renewal.ticket).collect();
    let names: Vec<_> = tickets.iter().map(|ticket| ticket.name.clone()).collect();
    let lines = match look::lines(core, &names).await {
        Ok(lines) => lines,
        Err(error) => return indices.into_iter().map(|index| (index, Err(error.clone()))).collect(),
    };
    let answer = |(line, ticket): (Result<Line>, &onelock_core::Ticket)| match line {
        Ok(line) if line.of(ticket.holder).is_none() => Ok(Renewed::NotHeld),
        Ok(_) => Err(Error::new(
            ErrorKind::Unsupported,
            "the entry belongs to another client, and only that one can renew it",
        )),
        Err(error) => Err(error),
    };
    indices.into_iter().zip(lines.into_iter().zip(tickets).map(answer)).collect()
}

fn too_long(asked: Duration, longest: Duration) -> Error {
    let human = humantime::format_duration;
    let text = format!(
        "an entry stays in the session it was made in, which carries {} at most: {} must be asked for when acquiring",
        human(longest),
        human(asked),
    );
    Error::new(ErrorKind::Unsupported, text)
}

/// The answer without the lock-delay. After a disconnection less may be left than the delay.
fn without_delay(answer: Renewed, delay: Duration) -> Renewed {
    match answer {
        Renewed::Held(grant) => Renewed::Held(Grant { lease: grant.lease.saturating_sub(delay), ..grant }),
        Renewed::Waiting(place) => {
            Renewed::Waiting(Place { lease: place.lease.saturating_sub(delay), ..place })
        }
        Renewed::NotHeld => Renewed::NotHeld,
    }
}

/// Renews entries of one session. Leases are with the lock-delay in here.
async fn batch(core: &Arc<Core>, mut items: Vec<Item>) -> Answers {
    let mut answers = Answers::new();
    let Some(session) = items.first().map(|item| Arc::clone(item.entry.session.session())) else {
        return answers;
    };
    // Twice at most without a full survey in between: nodes go one by one only when they are evicted.
    for _ in 0..4 {
        if items.is_empty() {
            return answers;
        }
        let sent = core.target.clock.now();
        match check(&session, &items).await {
            Ok((true, lines)) => {
                answers.extend(
                    items.into_iter().map(|item| (item.index, settle(core, &session, sent, &item, &lines))),
                );
                return answers;
            }
            Ok((false, _)) => {}
            Err(error) => return fail(core, items, answers, error),
        }
        // At least one is missing: which?
        let paths: Vec<_> = items.iter().map(|item| item.entry.path.clone()).collect();
        match look::read_all(&session, &paths).await {
            Ok(found) => {
                let mut found = found.into_iter();
                items.retain(|item| {
                    let there =
                        found.next().flatten().is_some_and(|(stat, _)| stat.ephemeral_owner == session.id());
                    if !there {
                        core.table.remove(&item.entry);
                        answers.push((item.index, Ok(Renewed::NotHeld)));
                    }
                    there
                });
            }
            Err(error) => return fail(core, items, answers, error),
        }
    }
    let text = "entries went away faster than they could be counted";
    answers.extend(items.iter().map(|item| (item.index, Err(Error::new(ErrorKind::Unavailable, text)))));
    answers
}

/// The answer when there is none: an entry of a session that is over is gone, everything else is not known.
fn fail(core: &Arc<Core>, items: Vec<Item>, mut answers: Answers, error: zk::Error) -> Answers {
    let over = ends_session(&error) && !core.is_closed();
    let first = items.first().map(|item| item.entry.path.clone()).unwrap_or_default();
    let error = failed(error, "renew", &first);
    for item in items {
        if over {
            core.table.remove(&item.entry);
            // The driver gives a session up by its own clock. Where the server does not know yet the node goes at once.
            erase_later(core, &item.entry.session, item.entry.path.clone());
        }
        answers.push((item.index, if over { Ok(Renewed::NotHeld) } else { Err(error.clone()) }));
    }
    answers
}

/// The lines that have changed for one that waits; or why one cannot be read.
type Lines = HashMap<String, Result<Line>>;

/// Whether every node is there, by one write that changes nothing; with it, behind the write, the lines in which something
/// that an entry waits for has changed.
async fn check(session: &Arc<Session>, items: &[Item]) -> Result<(bool, Lines), zk::Error> {
    let client = session.client()?;
    let mut writer = client.new_multi_writer();
    for item in items {
        writer.add_check_version(&item.entry.path, -1)?;
    }
    let probes = probes(items);
    let paths: Vec<_> = probes.iter().map(|probe| probe.path.clone()).collect();
    // Sent in this order: the session is answered in order, so what is read is no older than the write.
    let (checked, seen) = (writer.commit(), look::read_each(session, &paths));
    let checked = async {
        match checked.await {
            Ok(_) => Ok(true),
            Err(zk::MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(false),
            Err(error) => Err(zk::Error::from(error)),
        }
    };
    let (checked, seen) = join!(session.ask(checked), seen);
    if !checked? {
        return Ok((false, Lines::new()));
    }
    let mut changed = HashSet::new();
    for (probe, seen) in probes.iter().zip(seen?) {
        // What may not be read is looked for in the line.
        if !seen.is_ok_and(|seen| seen.is_some_and(|(stat, _)| probe.expects.is_met(&stat))) {
            changed.insert(probe.parent);
        }
    }
    let unseen =
        items.iter().map(|item| &item.entry).filter(|entry| !entry.is_held() && entry.ahead().is_none());
    changed.extend(unseen.map(|entry| entry.parent()));
    let lines =
        changed.into_iter().map(async |parent| (parent.to_owned(), look::line(session, parent).await));
    Ok((true, future::join_all(lines).await.into_iter().collect()))
}

/// What is read to see whether an entry still waits.
struct Probe<'a> {
    parent: &'a str,
    path: String,
    expects: Expects,
}

/// How a node is while the entry waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Expects {
    There,
    /// No child has come or gone since this transaction: permits are counted.
    Children(i64),
}

impl Expects {
    fn is_met(self, stat: &zk::Stat) -> bool {
        match self {
            Self::There => true,
            Self::Children(last) => stat.pzxid == last,
        }
    }
}

/// What the write does not show itself: whoever waits for an entry that is checked beside it needs no more.
fn probes(items: &[Item]) -> Vec<Probe<'_>> {
    let checked: HashSet<&str> = items.iter().map(|item| item.entry.path.as_str()).collect();
    let (mut probes, mut known) = (Vec::new(), HashSet::new());
    for entry in items.iter().map(|item| &item.entry).filter(|entry| !entry.is_held()) {
        let parent = entry.parent();
        let Some(ahead) = entry.ahead() else { continue };
        let (path, expects) = match ahead.watch {
            Watch::Gone { node, .. } => ([parent, "/", &node].concat(), Expects::There),
            Watch::Mark { .. } | Watch::Children => (parent.to_owned(), Expects::Children(ahead.changed)),
        };
        if !checked.contains(path.as_str()) && known.insert((path.clone(), expects)) {
            probes.push(Probe { parent, path, expects });
        }
    }
    probes
}

/// What one entry is told after the write that was sent at `sent`.
fn settle(
    core: &Arc<Core>,
    session: &Session,
    sent: Timestamp,
    item: &Item,
    lines: &Lines,
) -> Result<Renewed> {
    let entry = &item.entry;
    if !entry.is_held()
        && let Some(line) = lines.get(entry.parent())
    {
        let line = line.as_ref().map_err(Clone::clone)?;
        match line.stand(entry.node()) {
            Some(Stand::Held { followed }) => promoted(core, entry, followed),
            Some(Stand::Waits(watch)) => entry.wait_for(watch, line.changed()),
            None => {
                core.table.remove(entry);
                return Ok(Renewed::NotHeld);
            }
        }
    }
    let held = entry.is_held();
    let asked = if held { item.lease } else { item.waiter_lease };
    // After a disconnection the leader may not have heard of the session for a while: then it is less.
    let lease = asked.min(session.lasts(sent));
    if !entry.keep_until(core.target.clock.now() + lease) {
        return Ok(Renewed::NotHeld);
    }
    Ok(if held {
        Renewed::Held(Grant { token: entry.token, lease })
    } else {
        Renewed::Waiting(Place { token: Some(entry.token), lease, retry_after: None })
    })
}

#[cfg(test)]
mod tests {
    use onelock_core::FencingToken;

    use super::*;

    #[test]
    fn a_lease_that_is_shorter_than_the_delay_is_none() {
        let (token, second) = (FencingToken::new(1).unwrap(), Duration::from_secs(1));
        let held = |lease| Renewed::Held(Grant { token, lease });
        let waiting = |lease| Renewed::Waiting(Place { token: Some(token), lease, retry_after: None });
        assert_eq!(without_delay(held(second * 3), second), held(second * 2));
        assert_eq!(without_delay(held(second), second * 2), held(Duration::ZERO));
        assert_eq!(without_delay(waiting(second), second * 2), waiting(Duration::ZERO));
    }
}
