//! Leaving the line: release, eviction, and the removal of what nobody renews.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{FencingToken, LockName, Release, Result, Ticket};
use zookeeper_client as zk;

use crate::batch::{Step, Write};
use crate::entries::{Entries, Entry, Node};
use crate::error::{ends_session, failed};
use crate::keys;
use crate::line::{Line, read_all};
use crate::session::Session;
use crate::sessions::Sessions;

/// Removes the entry of exactly this holder.
pub(crate) async fn release(sessions: &Arc<Sessions>, entries: &Entries, ticket: &Ticket) -> Result<Release> {
    let key = (ticket.name.clone(), ticket.holder);
    if let Some(entry) = entries.get(&key, sessions.servers.clock.now()) {
        let was = leave(sessions, &entry).await?;
        entries.remove(&entry);
        return Ok(was);
    }
    // Not one of ours: the id finds it.
    let parent = keys::parent(&sessions.servers.base, &ticket.name);
    let desk = sessions.desk().await?;
    let Some(line) = Line::latest(&desk, &parent).await? else { return Ok(Release::NotHeld) };
    match line.by(ticket.holder) {
        Some(entry) => delete(sessions, desk, &format!("{parent}/{}", entry.name)).await,
        None => Ok(Release::NotHeld),
    }
}

/// Removes the entry with this number.
pub(crate) async fn evict(sessions: &Arc<Sessions>, name: &LockName, token: FencingToken) -> Result<Release> {
    let parent = keys::parent(&sessions.servers.base, name);
    let desk = sessions.desk().await?;
    let Some(line) = Line::latest(&desk, &parent).await? else { return Ok(Release::NotHeld) };
    let read = read_all(&desk, &parent, &line).await?;
    match read.into_iter().find(|read| read.stat.czxid == token.get()) {
        // A node's path is never used again, so deleting by path is deleting by number.
        Some(read) => delete(sessions, desk, &format!("{parent}/{}", read.entry.name)).await,
        None => Ok(Release::NotHeld),
    }
}

/// Deletes the node of an entry; of a join whose answer was lost, the one that it may have made.
pub(crate) async fn leave(sessions: &Arc<Sessions>, entry: &Arc<Entry>) -> Result<Release> {
    let mut session = Arc::clone(entry.room.session());
    if session.is_over() {
        session = sessions.desk().await?;
    }
    let path = match entry.node() {
        Some(Node { alone: true, path, .. }) => {
            match leave_alone(&session, &entry.paths.parent, &path).await? {
                Some(was) => return Ok(was),
                None => Some(path),
            }
        }
        Some(node) => Some(node.path),
        None => find(&session, entry).await?,
    };
    match path {
        Some(path) => delete(sessions, session, &path).await,
        None => Ok(Release::NotHeld),
    }
}

/// Looks for the node of a join whose answer was lost, by its id.
///
/// A server that had the request on the broken connection has dealt with it before it deals with this one, and what
/// another server forwards late for a session that has moved the leader refuses: what is not there now will not come.
pub(crate) async fn find(session: &Session, entry: &Entry) -> Result<Option<String>> {
    let parent = &entry.paths.parent;
    let line = Line::synced(session, parent).await?.unwrap_or_default();
    Ok(line.by(entry.key.1).map(|found| format!("{parent}/{}", found.name)))
}

/// Leaves together with the node of the name: so a lock that is free leaves nothing behind, and the next join knows from
/// making that node that it is alone. `None` when somebody has joined, or the node of the name is not ours to delete.
async fn leave_alone(session: &Session, parent: &str, path: &str) -> Result<Option<Release>> {
    let fail = |error| failed(error, "delete", path);
    let steps = vec![Step::Delete(path.to_owned()), Step::Delete(parent.to_owned())];
    match session.write(Write(steps)).await.map_err(fail)? {
        Ok(_) => Ok(Some(Release::Released)),
        Err((0, zk::Error::NoNode)) => Ok(Some(Release::NotHeld)),
        Err((1, _)) => Ok(None),
        Err((_, error)) => Err(fail(error)),
    }
}

/// Deletes a node: by this session, or by the desk when that one has ended.
async fn delete(sessions: &Arc<Sessions>, session: Arc<Session>, path: &str) -> Result<Release> {
    let answer = match session.delete(path).await {
        Err(error) if ends_session(&error) => sessions.desk().await?.delete(path).await,
        answer => answer,
    };
    match answer {
        Ok(()) => Ok(Release::Released),
        Err(zk::Error::NoNode) => Ok(Release::NotHeld),
        Err(error) => Err(failed(error, "delete", path)),
    }
}

/// Deletes the node of an entry in the background, until it is gone: by us, or with the end of its session.
pub(crate) fn leave_later(sessions: &Arc<Sessions>, entry: Arc<Entry>) {
    let sessions = Arc::clone(sessions);
    let servers = Arc::clone(&sessions.servers);
    let until = servers.clock.now() + entry.room.timeout() * 2;
    servers.runtime.spawn(async move {
        let mut attempt = 0;
        while sessions.servers.clock.now() < until {
            match leave(&sessions, &entry).await {
                Ok(_) => return,
                // No right to do it will not come with time.
                Err(error) if !error.is_unclear() => break,
                Err(_) => {}
            }
            tokio::time::sleep(pause(attempt)).await;
            attempt += 1;
        }
        entry.room.stays();
    });
}

/// How long to pause before the next attempt at what must be done.
fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(6))
}

/// Deletes the nodes of entries whose lease is over. It keeps the sessions of a client that was dropped, until the last
/// of its entries is over: to close them would end leases before their time.
pub(crate) async fn reap(sessions: Arc<Sessions>, entries: Arc<Entries>) {
    let servers = &sessions.servers;
    while Arc::strong_count(&entries) > 1 || !entries.is_empty() {
        for entry in entries.expired(servers.clock.now()) {
            leave_later(&sessions, entry);
        }
        // Leases last two ticks or more.
        tokio::time::sleep(servers.config.tick / 8).await;
    }
}
