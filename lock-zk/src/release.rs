//! Leaving the line: release, eviction, and the removal of what nobody renews.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{FencingToken, HolderId, LockName, Release, Result, Ticket};

use crate::batch::Step;
use crate::entries::{Entries, Entry};
use crate::keys;
use crate::line::Line;
use crate::session::Session;
use crate::sessions::Sessions;

/// Removes the entry of exactly this holder.
pub(crate) async fn release(sessions: &Arc<Sessions>, entries: &Entries, ticket: &Ticket) -> Result<Release> {
    if let Some(entry) = entries.get(ticket.holder, sessions.servers.clock.now()) {
        let was = leave(sessions, &entry).await?;
        entries.remove(&entry);
        return Ok(was);
    }
    // Not one of ours: the id finds it.
    let (line, desk) = Line::of_name(sessions, &ticket.name).await?;
    match line.by(ticket.holder) {
        Some(path) => desk.delete(path).await,
        None => Ok(Release::NotHeld),
    }
}

/// Removes the entry with this number.
pub(crate) async fn evict(sessions: &Arc<Sessions>, name: &LockName, token: FencingToken) -> Result<Release> {
    let (line, desk) = Line::of_name(sessions, name).await?;
    match line.nodes(&desk).await?.into_iter().find(|node| node.stat.czxid == token.get()) {
        // Only the same holder can use a node's path again, so deleting by path is deleting by number.
        Some(node) => desk.delete(&node.entry.path).await,
        None => Ok(Release::NotHeld),
    }
}

/// Deletes the node of an entry; of a join whose answer was lost, the one that it may have made.
pub(crate) async fn leave(sessions: &Arc<Sessions>, entry: &Entry) -> Result<Release> {
    let mut session = Arc::clone(&entry.session);
    if session.is_over() {
        session = sessions.desk().await?;
    }
    let Some(node) = entry.made() else {
        return leave_unseen(&session, &entry.paths.parent, entry.holder).await;
    };
    if node.alone {
        // Together with the node of the name: so a lock that is free leaves nothing behind, and the next join knows from making
        // that node that it is alone. Not done when somebody has joined, or the node of the name is not ours to delete.
        let steps = vec![Step::Delete(node.path.clone()), Step::Delete(entry.paths.parent.clone())];
        if session.write(steps, "delete", &node.path).await?.is_ok() {
            return Ok(Release::Released);
        }
    }
    session.delete(&node.path).await
}

/// Deletes the node of a join whose answer was lost: its id finds it.
///
/// A server that had the request on the broken connection has dealt with it before it deals with this one, and what
/// another server forwards late for a session that has moved the leader refuses: what is not there now will not come.
async fn leave_unseen(session: &Arc<Session>, parent: &str, holder: HolderId) -> Result<Release> {
    let (children, _) = session.latest_children(parent).await?;
    let prefix = keys::prefix(parent, holder);
    let mut paths = children.iter().map(|name| [parent, "/", name].concat());
    match paths.find(|path| path.starts_with(&prefix)) {
        Some(path) => session.delete(&path).await,
        None => Ok(Release::NotHeld),
    }
}

/// Deletes the node of an entry in the background, until it is gone: by us, or with the end of its session. A client that was
/// dropped ends that when nothing else needs it. Its holder joins no more until then: the next node may have the same path.
fn leave_later(sessions: &Arc<Sessions>, entries: &Entries, entry: Arc<Entry>) {
    let servers = Arc::clone(&sessions.servers);
    let (sessions, leaving) = (Arc::downgrade(sessions), Arc::clone(&entries.leaving));
    let until = servers.clock.now() + entry.session.timeout * 2;
    servers.runtime.clone().spawn(async move {
        let mut pause = Duration::from_millis(20);
        while (!entry.session.is_over() || servers.clock.now() < until)
            && let Some(sessions) = sessions.upgrade()
        {
            let most = match leave(&sessions, &entry).await {
                Ok(_) => break,
                Err(error) if error.is_unclear() => Duration::from_secs(1),
                // A right to do it may come, but not soon.
                Err(_) => Duration::from_secs(30),
            };
            drop(sessions);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(most);
        }
        leaving.lock().remove(&entry.holder);
    });
}

/// Deletes the nodes of a session that no entry has: it would keep them for as long as this client lives. A server shows such
/// nodes again that was restored, or has lost its last writes; a join that was held up makes one when its entry is over.
async fn tidy(session: Arc<Session>, entries: Arc<Entries>) {
    let listed = session.ask(async { session.client().await?.list_ephemerals(session.servers.root()).await });
    let nodes = listed.await.unwrap_or_default();
    // Behind the listing: an entry is there before its node is asked for.
    let stems = entries.stems();
    for path in nodes.iter().filter(|path| !stems.contains(keys::without_sequence(path))) {
        // What fails is tried again by the next sweep.
        if session.delete(path).await.is_err() {
            break;
        }
    }
}

/// How often sessions without entries are closed, and the others tidied.
const IDLE: Duration = Duration::from_secs(120);

/// Deletes the nodes of entries whose lease is over. It keeps the sessions of a client that was dropped, until the last
/// of its entries is over: to close them would end leases before their time.
pub(crate) async fn reap(sessions: Arc<Sessions>, entries: Arc<Entries>) {
    let servers = &sessions.servers;
    let mut sweep = servers.clock.now() + IDLE;
    while Arc::strong_count(&entries) > 1 || !entries.is_empty() {
        let now = servers.clock.now();
        for entry in entries.expired(now) {
            leave_later(&sessions, &entries, entry);
        }
        if sweep <= now {
            for session in sessions.sweep() {
                servers.runtime.spawn(tidy(session, Arc::clone(&entries)));
            }
            sweep = now + IDLE;
        }
        // Leases last two ticks or more.
        tokio::time::sleep(servers.config.tick / 8).await;
    }
}
