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

use crate::batch::{Step, send};
use crate::entries::{Entries, Entry, Node};
use crate::error::failed;
use crate::line::{Line, Stand};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::wait::stands;

/// About how many bytes are in a request: servers may take less than their default of a megabyte.
const BYTES: usize = 32 * 1024;

struct Item<'a> {
    index: usize,
    due: &'a Renewal,
    entry: Arc<Entry>,
    node: Node,
}

/// Renews what is due, each session by itself. What gets no answer there is gone.
pub(crate) async fn renew(
    sessions: &Arc<Sessions>,
    entries: &Entries,
    due: &[Renewal],
) -> Vec<Result<Renewed>> {
    let now = sessions.servers.clock.now();
    let mut answers: Vec<_> = due.iter().map(|_| Ok(Renewed::NotHeld)).collect();
    let (mut strangers, mut items) = (Vec::new(), Vec::new());
    for (index, due) in due.iter().enumerate() {
        let entry = entries.get(due.ticket.holder, now);
        // What has lapsed is in its line until it is deleted.
        let lapsed = entry.is_none() && entries.has_lapsed(due.ticket.holder);
        let Some((entry, node)) = entry.and_then(|entry| entry.node().map(|node| (entry, node))) else {
            strangers.extend((!lapsed).then_some(async move { (index, unknown(sessions, due).await) }));
            continue;
        };
        let longest = entry.session.capacity().saturating_sub(due.ticket.delay);
        if due.lease.max(due.waiter_lease) > longest {
            let text = format!(
                "an entry stays in the session it was made in, which carries {longest:?} at most: {:?} must be asked for \
                 when acquiring",
                due.lease,
            );
            answers[index] = Err(Error::new(ErrorKind::Unsupported, text));
            continue;
        }
        items.push(Item { index, due, entry, node });
    }
    items.sort_by_key(|item| Arc::as_ptr(&item.entry.session));
    let of_sessions = items.chunk_by(|a, b| Arc::ptr_eq(&a.entry.session, &b.entry.session));
    let batches = of_sessions.flat_map(|items| {
        let longest = items.iter().map(|item| item.node.path.len()).max().unwrap_or_default();
        // A waiter's node, and the one that it waits for.
        items.chunks((BYTES / (2 * (16 + longest))).max(1))
    });
    let renewed = batches.map(|batch| renew_batch(entries, batch.iter().collect()));
    let (renewed, strangers) = join!(join_all(renewed), join_all(strangers));
    for (index, answer) in renewed.into_iter().flatten().chain(strangers) {
        answers[index] = answer;
    }
    answers
}

/// Of an entry that this client does not know: gone, or another client's, which alone can renew it, because a node belongs to
/// the session that made it.
async fn unknown(sessions: &Arc<Sessions>, due: &Renewal) -> Result<Renewed> {
    let (line, _) = Line::of_name(sessions, &due.ticket.name).await?;
    let Some(_) = line.by(due.ticket.holder) else { return Ok(Renewed::NotHeld) };
    Err(Error::new(ErrorKind::Unsupported, "the entry is another client's, and only that one can renew it"))
}

/// Renews entries of one session.
async fn renew_batch(entries: &Entries, mut items: Vec<&Item<'_>>) -> Vec<(usize, Result<Renewed>)> {
    let (session, first) = (Arc::clone(&items[0].entry.session), items[0].node.path.clone());
    let sent = match check(&session, entries, &mut items).await {
        Ok(sent) => sent,
        // It has ended; one that this client has closed is an error.
        Err(_) if session.handle().is_ok_and(|client| client.state().is_terminated()) => {
            // The driver gives a session up by its own clock. Where the server does not know yet the node is deleted.
            items.iter().for_each(|item| item.entry.end());
            return Vec::new();
        }
        Err(error) => {
            let error = failed(error, "renew", &first);
            return items.into_iter().map(|item| (item.index, Err(error.clone()))).collect();
        }
    };
    let lines = changed(&session, &items).await;
    items.iter().map(|item| (item.index, settle(entries, sent, item, &lines))).collect()
}

/// Sends a write that changes nothing, until all nodes that it checks are there: the server names the first that is not, and a
/// read the others. An entry that is gone is taken out; a waiter whose predecessor is gone is noted. When the write was sent.
async fn check(
    session: &Session,
    entries: &Entries,
    items: &mut Vec<&Item<'_>>,
) -> Result<Timestamp, zk::Error> {
    loop {
        let client = session.ask(session.client()).await?;
        let sent = session.servers.clock.now();
        if items.is_empty() {
            return Ok(sent);
        }
        let mut paths: HashSet<_> = items.iter().map(|item| item.node.path.clone()).collect();
        paths.extend(items.iter().filter_map(|item| predecessor(&item.entry)));
        let paths: Vec<_> = paths.into_iter().collect();
        let checks: Vec<_> = paths.iter().map(|path| Step::Check(path.clone(), -1)).collect();
        match session.ask(send(&client, &checks)).await? {
            Ok(_) => return Ok(sent),
            // What may not be read is looked for in the line.
            Err((at, zk::Error::NoNode | zk::Error::NoAuth)) if at < paths.len() => {
                let mut reader = client.new_multi_reader();
                // Their children, which they do not have: the shortest answer there is.
                paths[at + 1..].iter().try_for_each(|path| reader.add_get_children(path))?;
                let others = session.ask(reader.commit()).await?;
                let others = paths[at + 1..].iter().zip(others).filter(|(_, read)| is_missing(read));
                let missing: HashSet<_> = others.map(|(path, _)| path).chain([&paths[at]]).collect();
                for Item { entry, .. } in &*items {
                    if predecessor(entry).is_some_and(|path| missing.contains(&path)) {
                        entry.set_stand(None);
                    }
                }
                let gone = items.extract_if(.., |item| missing.contains(&item.node.path));
                gone.for_each(|item| entries.remove(&item.entry));
            }
            Err((_, error)) => return Err(error),
        }
    }
}

/// Whether a node is not there, or may not be read.
fn is_missing(read: &zk::MultiReadResult) -> bool {
    matches!(read, zk::MultiReadResult::Error { err: zk::Error::NoNode | zk::Error::NoAuth })
}

/// The node without which a waiter may hold.
fn predecessor(entry: &Entry) -> Option<String> {
    if let Some(Stand::Behind { watched, counted: None }) = entry.stand() { Some(watched) } else { None }
}

/// The lines in which something has changed that an entry waits for; or why one cannot be read.
async fn changed(session: &Session, items: &[&Item<'_>]) -> HashMap<String, Result<Line>> {
    let mut parents = HashMap::<&str, i64>::new();
    for Item { entry, .. } in items {
        let last = match entry.stand() {
            Some(Stand::Held | Stand::Behind { counted: None, .. }) => continue,
            // Has a permit come or gone since?
            Some(Stand::Behind { counted: Some(last), .. }) => last,
            None => 0,
        };
        let oldest = parents.entry(&entry.paths.parent).or_insert(last);
        *oldest = (*oldest).min(last);
    }
    let read = parents.into_iter().map(async |(parent, last)| {
        let same = |stat: zk::Stat| stat.pzxid == last;
        let unchanged = last > 0 && session.stat(parent).await.is_ok_and(|stat| stat.is_some_and(same));
        if unchanged { None } else { Some((parent.to_owned(), Line::read(session, parent).await)) }
    });
    join_all(read).await.into_iter().flatten().collect()
}

/// The answer for one entry after the write that was sent at `sent`.
fn settle(
    entries: &Entries,
    sent: Timestamp,
    item: &Item<'_>,
    lines: &HashMap<String, Result<Line>>,
) -> Result<Renewed> {
    let (entry, due) = (&item.entry, item.due);
    if entry.stand() != Some(Stand::Held)
        && let Some(line) = lines.get(&entry.paths.parent)
        && !stands(entry, &item.node, line.as_ref().map_err(Clone::clone)?)
    {
        entries.remove(entry);
        return Ok(Renewed::NotHeld);
    }
    Ok(kept(entry, &item.node, sent, due))
}

/// Keeps an entry whose node was there when the leader did what was sent at `sent`.
pub(crate) fn kept(entry: &Entry, node: &Node, sent: Timestamp, due: &Renewal) -> Renewed {
    let (session, held) = (&entry.session, entry.stand() == Some(Stand::Held));
    let asked = if held { due.lease } else { due.waiter_lease } + due.ticket.delay;
    // After a disconnection the leader may not have heard of the session for a while: then it is less, even than the delay.
    let kept = asked.min(session.lasts(sent));
    if !entry.keep_until(session.servers.clock.now() + kept) {
        return Renewed::NotHeld;
    }
    answer(held, node.token, kept, due.ticket.delay)
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
