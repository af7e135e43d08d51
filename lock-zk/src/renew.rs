//! Renewing: one write through the leader per session and batch, which checks that every node is there, and every node
//! that a waiter waits for. The line itself is read only when one of those is gone: a waiter costs the same however long
//! its line is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;
use onelock_core::{Error, ErrorKind, FencingToken, Grant, Place, Renewal, Renewed, Result, Timestamp};
use zookeeper_client as zk;

use crate::batch::{Step, Write, send};
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

struct Item<'a> {
    index: usize,
    due: &'a Renewal,
    entry: Arc<Entry>,
    path: String,
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
    let (mut strangers, mut batches) = (Vec::new(), HashMap::<i64, Vec<Vec<Item<'_>>>>::new());
    for (index, due) in due.iter().enumerate() {
        let entry = entries.get(&(due.ticket.name.clone(), due.ticket.holder), now);
        let Some((entry, node)) = entry.and_then(|entry| entry.node().map(|node| (entry, node))) else {
            strangers.push(async move { (index, unknown(sessions, due).await) });
            continue;
        };
        let longest = entry.room.capacity().saturating_sub(due.ticket.delay);
        if due.lease.max(due.waiter_lease) > longest {
            answers[index] = Err(too_long(due.lease, longest));
            continue;
        }
        let of_session = batches.entry(entry.room.id()).or_default();
        // A waiter's node, and the one that it waits for.
        let most = BYTES / (2 * (16 + node.path.len()));
        let item = Item { index, due, entry, path: node.path };
        match of_session.last_mut().filter(|batch| batch.len() < most) {
            Some(batch) => batch.push(item),
            None => of_session.push(vec![item]),
        }
    }
    let batches = batches.into_values().flatten().map(|batch| renew_batch(sessions, entries, batch));
    let (batches, strangers) = join!(join_all(batches), join_all(strangers));
    for (index, answer) in batches.into_iter().flatten().chain(strangers) {
        answers[index] = answer;
    }
    answers
}

/// An entry that this client does not know: gone, or another client's, which nobody else can renew, because a node
/// belongs to the session that made it.
async fn unknown(sessions: &Arc<Sessions>, due: &Renewal) -> Result<Renewed> {
    let parent = keys::parent(&sessions.servers.base, &due.ticket.name);
    let line = Line::read(&*sessions.desk().await?, &parent).await?;
    let text = "the entry belongs to another client, and only that one can renew it";
    line.by(due.ticket.holder).map_or(Ok(Renewed::NotHeld), |_| Err(Error::new(ErrorKind::Unsupported, text)))
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

/// Renews entries of one session.
async fn renew_batch(sessions: &Arc<Sessions>, entries: &Entries, mut items: Vec<Item<'_>>) -> Answers {
    let mut answers = Answers::new();
    let Some(Item { entry, path, .. }) = items.first() else { return answers };
    let (session, first) = (Arc::clone(entry.room.session()), path.clone());
    let sent = match check(&session, entries, &mut items, &mut answers).await {
        Ok(sent) => sent,
        Err(error) => {
            let over = ends_session(&error) && !sessions.is_closed();
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

/// Sends a write that changes nothing, until all nodes that it checks are there: the server names the first that is not. An
/// entry that is gone is answered and taken out; a waiter whose predecessor is gone is noted. When the write was sent.
async fn check(
    session: &Session,
    entries: &Entries,
    items: &mut Vec<Item<'_>>,
    answers: &mut Answers,
) -> Result<Timestamp, zk::Error> {
    loop {
        let sent = session.servers.clock.now();
        if items.is_empty() {
            return Ok(sent);
        }
        let mut paths: HashSet<String> = items.iter().map(|item| item.path.clone()).collect();
        paths.extend(items.iter().filter_map(|item| predecessor(&item.entry)));
        let paths: Vec<_> = paths.into_iter().collect();
        let checks = Write(paths.iter().map(|path| Step::Check(path.clone(), -1)).collect());
        let client = session.client()?;
        match session.ask(send(&client, [&checks])).await? {
            Ok(_) => return Ok(sent),
            // What may not be read is looked for in the line.
            Err((at, zk::Error::NoNode | zk::Error::NoAuth)) if at < paths.len() => {
                for item in &*items {
                    if predecessor(&item.entry).is_some_and(|path| path == paths[at]) {
                        item.entry.forget_ahead();
                    }
                }
                for item in items.extract_if(.., |item| item.path == paths[at]) {
                    entries.remove(&item.entry);
                    answers.push((item.index, Ok(Renewed::NotHeld)));
                }
            }
            Err((_, error)) => return Err(error),
        }
    }
}

/// The node without which a waiter may hold.
fn predecessor(entry: &Entry) -> Option<String> {
    match entry.ahead() {
        Some((ahead @ Ahead::Entry(_), _)) if !entry.is_held() => Some(ahead.path(&entry.paths.parent)),
        _ => None,
    }
}

/// The lines in which something has changed that an entry waits for; or why one cannot be read.
async fn changed(session: &Session, items: &[Item<'_>]) -> HashMap<String, Result<Line>> {
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
    item: &Item<'_>,
    lines: &HashMap<String, Result<Line>>,
) -> Result<Renewed> {
    let (entry, due) = (&item.entry, item.due);
    if !entry.is_held()
        && let Some(line) = lines.get(&entry.paths.parent)
        && !stands(entry, line.as_ref().map_err(Clone::clone)?)
    {
        entries.remove(entry);
        return Ok(Renewed::NotHeld);
    }
    let held = entry.is_held();
    let asked = if held { due.lease } else { due.waiter_lease } + due.ticket.delay;
    // After a disconnection the leader may not have heard of the session for a while: then it is less, even than the delay.
    let kept = asked.min(session.lasts(sent));
    let Some(node) = entry.node().filter(|_| entry.keep_until(session.servers.clock.now() + kept)) else {
        return Ok(Renewed::NotHeld);
    };
    Ok(answer(held, node.token, kept, due.ticket.delay))
}

/// The lease is without the lock-delay.
fn answer(held: bool, token: FencingToken, kept: Duration, delay: Duration) -> Renewed {
    let lease = kept.saturating_sub(delay);
    match held {
        true => Renewed::Held(Grant::new(token, lease)),
        false => Renewed::Waiting(Place::new(token, lease)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_shorter_than_the_delay_is_none() {
        let (token, second) = (FencingToken::new(1).unwrap(), Duration::from_secs(1));
        let held = |lease| Renewed::Held(Grant::new(token, lease));
        let waiting = |lease| Renewed::Waiting(Place::new(token, lease));
        assert_eq!(answer(true, token, second * 3, second), held(second * 2));
        assert_eq!(answer(true, token, second, second * 2), held(Duration::ZERO));
        assert_eq!(answer(false, token, second, second * 2), waiting(Duration::ZERO));
    }
}
