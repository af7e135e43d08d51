//! Renewing: one write through the leader per session and batch, which checks that every node is there, and every node
//! that a waiter waits for. The line itself is read only when one of those is gone: a waiter costs the same however long
//! its line is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;
use onelock_core::{Error, ErrorKind, Grant, Place, Renewal, Renewed, Result, Timestamp};
use zookeeper_client as zk;

use crate::entries::{Entries, Entry};
use crate::error::{ends_session, failed};
use crate::keys;
use crate::line::{Ahead, Line};
use crate::release::leave_later;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::wait::stands;

/// About how many bytes are in a request: servers may take less than their default of a megabyte.
const BYTES: usize = 32 * 1024;

/// Leases are with the lock-delay in here.
struct Item {
    index: usize,
    entry: Arc<Entry>,
    path: String,
    lease: Duration,
    waiter_lease: Duration,
}

type Answers = Vec<(usize, Result<Renewed>)>;

/// Renews what is due, each session by itself.
pub(crate) async fn renew(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    due: &[Renewal],
) -> Vec<Result<Renewed>> {
    let now = sessions.servers.clock.now();
    let mut answers: Vec<_> = due.iter().map(|_| Ok(Renewed::NotHeld)).collect();
    let (mut strangers, mut batches) = (Vec::new(), HashMap::<i64, Vec<Vec<Item>>>::new());
    for (index, renewal) in due.iter().enumerate() {
        let ticket = &renewal.ticket;
        let entry = entries.get(&(ticket.name.clone(), ticket.holder), now);
        let Some((entry, node)) = entry.and_then(|entry| entry.node().map(|node| (entry, node))) else {
            strangers.push(unknown(sessions, index, renewal));
            continue;
        };
        let longest = entry.room.capacity().saturating_sub(ticket.delay);
        if renewal.lease.max(renewal.waiter_lease) > longest {
            answers[index] = Err(too_long(renewal.lease, longest));
            continue;
        }
        let (lease, waiter_lease) = (renewal.lease + ticket.delay, renewal.waiter_lease + ticket.delay);
        let of_session = batches.entry(entry.room.id()).or_default();
        // A waiter's node, and the one that it waits for.
        let most = BYTES / (2 * (16 + node.path.len()));
        let item = Item { index, entry, path: node.path, lease, waiter_lease };
        match of_session.last_mut().filter(|batch| batch.len() < most) {
            Some(batch) => batch.push(item),
            None => of_session.push(vec![item]),
        }
    }
    let batches = batches.into_values().flatten().map(|batch| renew_batch(sessions, entries, batch));
    let (batches, strangers) = join!(join_all(batches), join_all(strangers));
    for (index, answer) in batches.into_iter().flatten().chain(strangers) {
        answers[index] = match (answer, due.get(index)) {
            (Ok(answer), Some(renewal)) => Ok(without_delay(answer, renewal.ticket.delay)),
            (answer, _) => answer,
        };
    }
    answers
}

/// An entry that this client does not know: gone, or another client's, which nobody else can renew, because a node
/// belongs to the session that made it.
async fn unknown(sessions: &Arc<Sessions>, index: usize, renewal: &Renewal) -> (usize, Result<Renewed>) {
    let look = async {
        let parent = keys::parent(&sessions.servers.base, &renewal.ticket.name);
        let line = Line::read(&*sessions.desk().await?, &parent).await?;
        match line.by(renewal.ticket.holder) {
            None => Ok(Renewed::NotHeld),
            Some(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "the entry belongs to another client, and only that one can renew it",
            )),
        }
    };
    (index, look.await)
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

/// Renews entries of one session.
async fn renew_batch(sessions: &Arc<Sessions>, entries: &Entries, mut items: Vec<Item>) -> Answers {
    let mut answers = Answers::new();
    let Some(session) = items.first().map(|item| Arc::clone(item.entry.room.session())) else {
        return answers;
    };
    let sent = match check(&session, entries, &mut items, &mut answers).await {
        Ok(sent) => sent,
        Err(error) => {
            let over = ends_session(&error) && !entries.is_closed();
            let first = items.first().map(|item| item.path.clone()).unwrap_or_default();
            let error = failed(error, "renew", &first);
            for item in items {
                if over {
                    entries.remove(&item.entry);
                    // The driver gives a session up by its own clock. Where the server does not know yet the node goes at
                    // once.
                    leave_later(sessions, item.entry);
                }
                answers.push((item.index, if over { Ok(Renewed::NotHeld) } else { Err(error.clone()) }));
            }
            return answers;
        }
    };
    let lines = changed(&session, &items).await;
    answers.extend(items.iter().map(|item| (item.index, settle(&session, entries, sent, item, &lines))));
    answers
}

/// Sends a write that changes nothing, until all nodes that it checks are there: entries that are gone are answered and
/// taken out, and waiters whose predecessor is gone are noted. When the write was sent.
async fn check(
    session: &Session,
    entries: &Entries,
    items: &mut Vec<Item>,
    answers: &mut Answers,
) -> Result<Timestamp, zk::Error> {
    // Twice at most without a full survey in between: nodes go one by one only when they are evicted.
    for _ in 0..4 {
        let mut paths: HashSet<String> = items.iter().map(|item| item.path.clone()).collect();
        paths.extend(items.iter().filter_map(|item| predecessor(&item.entry)));
        let sent = session.servers.clock.now();
        if items.is_empty() {
            return Ok(sent);
        }
        let client = session.client()?;
        let mut writer = client.new_multi_writer();
        for path in &paths {
            writer.add_check_version(path, -1)?;
        }
        let checked = writer.commit();
        let checked = async {
            match checked.await {
                Ok(_) => Ok(true),
                Err(zk::MultiWriteError::OperationFailed { .. }) => Ok(false),
                Err(error) => Err(zk::Error::from(error)),
            }
        };
        if session.ask(checked).await? {
            return Ok(sent);
        }
        // At least one is missing: which?
        let there = paths.iter().map(async |path| match session.data(path).await {
            Ok(_) => Ok(Some(path.as_str())),
            // What may not be read is looked for in the line.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => Ok(None),
            Err(error) => Err(error),
        });
        let there = join_all(there).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let there: HashSet<&str> = there.into_iter().flatten().collect();
        for item in &*items {
            if predecessor(&item.entry).is_some_and(|path| !there.contains(path.as_str())) {
                item.entry.forget_ahead();
            }
        }
        items.retain(|item| {
            let there = there.contains(item.path.as_str());
            if !there {
                entries.remove(&item.entry);
                answers.push((item.index, Ok(Renewed::NotHeld)));
            }
            there
        });
    }
    Err(zk::Error::ConnectionLoss)
}

/// The node without which a waiter may hold.
fn predecessor(entry: &Entry) -> Option<String> {
    match entry.ahead() {
        Some((Ahead::Entry(name), _)) if !entry.is_held() => Some([&entry.paths.parent, "/", &name].concat()),
        _ => None,
    }
}

/// The lines in which something has changed that an entry waits for; or why one cannot be read.
async fn changed(session: &Session, items: &[Item]) -> HashMap<String, Result<Line>> {
    let mut parents = HashMap::<&str, Option<i64>>::new();
    for entry in items.iter().map(|item| &item.entry).filter(|entry| !entry.is_held()) {
        let last = match entry.ahead() {
            Some((Ahead::Entry(_), _)) => continue,
            // Permits are counted: has one come or gone since?
            Some((Ahead::Permit(_) | Ahead::Holders, last)) => Some(last),
            None => None,
        };
        let oldest = parents.entry(&entry.paths.parent).or_insert(last);
        *oldest = (*oldest).min(last);
    }
    let read = parents.into_iter().map(async |(parent, last)| {
        let unchanged = match last {
            Some(last) => matches!(session.stat(parent).await, Ok(Some(stat)) if stat.pzxid == last),
            None => false,
        };
        if unchanged { None } else { Some((parent.to_owned(), Line::read(session, parent).await)) }
    });
    join_all(read).await.into_iter().flatten().collect()
}

/// The answer for one entry after the write that was sent at `sent`.
fn settle(
    session: &Session,
    entries: &Entries,
    sent: Timestamp,
    item: &Item,
    lines: &HashMap<String, Result<Line>>,
) -> Result<Renewed> {
    let entry = &item.entry;
    if !entry.is_held()
        && let Some(line) = lines.get(&entry.paths.parent)
        && !stands(entry, line.as_ref().map_err(Clone::clone)?)
    {
        entries.remove(entry);
        return Ok(Renewed::NotHeld);
    }
    let held = entry.is_held();
    let asked = if held { item.lease } else { item.waiter_lease };
    // After a disconnection the leader may not have heard of the session for a while: then it is less.
    let lease = asked.min(session.lasts(sent));
    let Some(node) = entry.node().filter(|_| entry.keep_until(session.servers.clock.now() + lease)) else {
        return Ok(Renewed::NotHeld);
    };
    Ok(if held {
        Renewed::Held(Grant { token: node.token, lease })
    } else {
        Renewed::Waiting(Place { token: Some(node.token), lease, retry_after: None })
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
