//! Leaving the line: release, eviction, and the removal of what must not stay.

use std::sync::Arc;

use futures_util::join;
use onelock_core::{FencingToken, LockName, Release, Result, Ticket};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::{ends_session, failed};
use crate::group;
use crate::layout;
use crate::line::Line;
use crate::look;
use crate::pool::Room;
use crate::session::Session;
use crate::table::{Entry, pause};

/// Removes the entry of exactly this holder.
pub(crate) async fn release(core: &Arc<Core>, ticket: &Ticket) -> Result<Release> {
    core.check()?;
    let key = (ticket.name.clone(), ticket.holder);
    if let Some(entry) = core.table.get(&key, core.target.clock.now()) {
        let was = match tidy(core, &entry).await? {
            Some(was) => was,
            None => delete(core, entry.session.session(), &entry.path).await?,
        };
        core.table.remove(&entry);
        return Ok(was);
    }
    // Not one of ours, or its number never came: the id finds it.
    let parent = layout::parent(&core.target.base, &ticket.name);
    let desk = core.target.desk().await?;
    let Some(line) = latest(core, &desk, &parent).await? else { return Ok(Release::NotHeld) };
    match line.of(ticket.holder) {
        Some(node) => delete(core, &desk, &format!("{parent}/{}", node.name)).await,
        None => Ok(Release::NotHeld),
    }
}

/// Removes the entry with this number.
pub(crate) async fn evict(core: &Arc<Core>, name: &LockName, token: FencingToken) -> Result<Release> {
    core.check()?;
    let parent = layout::parent(&core.target.base, name);
    let desk = core.target.desk().await?;
    let Some(line) = latest(core, &desk, &parent).await? else { return Ok(Release::NotHeld) };
    let created = look::created(&desk, &parent, &line).await?;
    let node = created.into_iter().find(|(_, czxid)| *czxid == token.get());
    match node {
        // A node's path is never used again, so deleting by path is deleting by number.
        Some((node, _)) => delete(core, &desk, &format!("{parent}/{node}")).await,
        None => Ok(Release::NotHeld),
    }
}

/// Leaves together with the node of the name, when it was made with this entry: so a lock that is free leaves nothing
/// behind, and the next join knows from creating that node that it is alone. `None` when that is not to be.
async fn tidy(core: &Arc<Core>, entry: &Arc<Entry>) -> Result<Option<Release>> {
    if !entry.alone || entry.session.is_over() {
        return Ok(None);
    }
    let fail = |error| failed(error, "delete", &entry.path);
    let deleted = group::write(entry.session.session(), group::Write::Leave(Arc::clone(entry)));
    let deleted = async {
        match deleted.await {
            Ok(_) => Ok(Some(Release::Released)),
            Err(zk::MultiWriteError::OperationFailed { index: 0, source: zk::Error::NoNode }) => {
                Ok(Some(Release::NotHeld))
            }
            // Somebody has joined, or the node of the name is not ours to delete.
            Err(zk::MultiWriteError::OperationFailed { index: 1, .. }) => Ok(None),
            Err(error) => Err(zk::Error::from(error)),
        }
    };
    let deleted = entry.session.ask(deleted).await.map_err(fail)?;
    match deleted {
        Some(_) => core.popular.remove(&entry.key.0),
        None => _ = core.popular.add(&entry.key.0),
    }
    Ok(deleted)
}

/// The line as the leader knows it now; `None` when nobody ever asked for the name, or all have gone.
pub(crate) async fn latest(core: &Core, session: &Session, parent: &str) -> Result<Option<Line>> {
    if !core.standalone {
        return synced(session, parent).await;
    }
    // A single server answers what it knows.
    let fail = |error| failed(error, "list", parent);
    let client = session.client().map_err(fail)?;
    listed(session.ask(client.list_children(parent)).await, parent)
}

/// The same, whatever this client believes about the servers.
pub(crate) async fn synced(session: &Session, parent: &str) -> Result<Option<Line>> {
    let fail = |error| failed(error, "list", parent);
    let client = session.client().map_err(fail)?;
    // One after the other on one connection: the listing is no older than the answer to the first.
    let (synced, children) = (client.sync(parent), client.list_children(parent));
    let (synced, children) = join!(session.ask(synced), session.ask(children));
    synced.map_err(fail)?;
    listed(children, parent)
}

fn listed(children: Result<Vec<String>, zk::Error>, parent: &str) -> Result<Option<Line>> {
    match children {
        Ok(children) => look::read(children, parent).map(Some),
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(failed(error, "list", parent)),
    }
}

/// Deletes a node: by its own session, or by the desk when that one is over.
pub(crate) async fn delete(core: &Arc<Core>, session: &Arc<Session>, path: &str) -> Result<Release> {
    let mut session = Arc::clone(session);
    if session.is_over() {
        session = core.target.desk().await?;
    }
    for last in [false, true] {
        let answer = match session.client() {
            Ok(client) => session.ask(client.delete(path, None)).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => return Ok(Release::Released),
            Err(zk::Error::NoNode) => return Ok(Release::NotHeld),
            Err(error) if !last && ends_session(&error) => session = core.target.desk().await?,
            Err(error) => return Err(failed(error, "delete", path)),
        }
    }
    Ok(Release::NotHeld)
}

/// Deletes a node in the background, until it is gone: by us, or with the end of its session.
pub(crate) fn erase_later(core: &Arc<Core>, session: &Arc<Room>, path: String) {
    let (core, session) = (Arc::clone(core), Arc::clone(session));
    let until = core.target.clock.now() + session.timeout() * 2;
    let runtime = core.target.runtime.clone();
    runtime.spawn(async move {
        let mut attempt = 0;
        while !core.is_closed() && core.target.clock.now() < until {
            match delete(&core, session.session(), &path).await {
                Ok(_) => return,
                // No right to do it will not come with time.
                Err(error) if !error.is_unclear() => break,
                Err(_) => {}
            }
            tokio::time::sleep(pause(attempt)).await;
            attempt += 1;
        }
        session.stays();
    });
}
