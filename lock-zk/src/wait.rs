//! Waiting: one watch on the one node that matters, kept over dropped calls.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use onelock_core::{Error, ErrorKind, Mode, Result, Ticket, Wake};
use zookeeper_client as zk;

use crate::entries::{Entries, Entry, Node, Watch};
use crate::error::failed;
use crate::keys::Child;
use crate::line::{Line, Stand};
use crate::session::Servers;

/// Ends when the entry holds, or when asking again may help.
pub(crate) async fn wait(servers: &Servers, entries: &Entries, ticket: &Ticket) -> Result<Wake> {
    loop {
        let Some(entry) = entries.get(ticket.holder, servers.clock.now()) else { return Ok(Wake::Ask) };
        let mut watch = entry.watch.lock().await;
        let Some(node) = entry.node() else { return Ok(Wake::Ask) };
        let stand = entry.stand();
        if stand == Some(Stand::Held) {
            return Ok(Wake::Held(node.token));
        }
        let Some(armed) = &mut *watch else {
            // In a place of its own: a waiter keeps no room for requests while it waits.
            if let Some(Stand::Behind { watched, counted }) = stand {
                *watch = Box::pin(set(&entry, &node, &watched, counted)).await?;
                continue;
            }
            let line = Box::pin(Line::read(&entry.session, &entry.paths.parent)).await?;
            if !stands(&entry, &node, &line) {
                // Not in the line any more: asking says so.
                return Ok(Wake::Ask);
            }
            continue;
        };
        let event = AssertUnwindSafe(armed).catch_unwind().await;
        *watch = None;
        let text = "the session's task has ended with the runtime it ran on";
        let event = event.map_err(|_| Error::new(ErrorKind::Unavailable, text))?;
        if event.event_type == zk::EventType::Session {
            return Ok(Wake::Ask);
        }
        entry.set_stand(None);
    }
}

/// Sets a watch on the node at `path`, which the entry waits for; nothing when that has changed: then it is noted, or the line is to
/// be read.
async fn set(entry: &Arc<Entry>, node: &Node, path: &str, counted: Option<i64>) -> Result<Option<Watch>> {
    let (session, parent) = (&entry.session, &entry.paths.parent);
    let client = session.ask(session.client()).await.map_err(|error| failed(error, "watch", path))?;
    let children = async || {
        let watched = session.ask(client.get_and_watch_children(parent)).await;
        watched.map(|(_, stat, watcher)| (counted != Some(stat.pzxid), watcher))
    };
    let mut watched = if path == parent {
        children().await
    } else {
        let watched = session.ask(client.get_and_watch_data(path)).await;
        // A permit that was marked before the watch was set, or written by somebody else.
        watched.map(|(_, stat, watcher)| (counted.is_some() && stat.version > 0, watcher))
    };
    if matches!(watched, Err(zk::Error::NoAuth)) {
        // Another user's node: the server sends no events of it. The children of the line show that it is gone.
        watched = children().await.map(|(_, watcher)| (true, watcher));
    }
    let (changed, watcher) = match watched {
        Ok(watched) => watched,
        Err(zk::Error::NoNode) => {
            entry.set_stand(None);
            return Ok(None);
        }
        Err(error) => return Err(failed(error, "watch", path)),
    };
    if changed {
        // The line behind the watch shows whether it waits for the same.
        let line = Line::read(session, parent).await?;
        let same = |now| matches!(now, Stand::Behind { watched, .. } if watched == path);
        if !stands(entry, node, &line) || !entry.stand().is_some_and(same) {
            entry.set_stand(None);
            return Ok(None);
        }
    }
    Ok(Some(Box::pin(watcher.changed())))
}

/// Notes how the entry stands in this line; false when it is not there. A permit that was promoted notifies one right behind
/// it, which watches its node, by writing the node's data once more: nothing else in the tree changes then.
pub(crate) fn stands(entry: &Arc<Entry>, node: &Node, line: &Line) -> bool {
    let Some(stand) = line.stand(&node.path) else { return false };
    let from_here = line.entries.iter().skip_while(|other| other.path != node.path);
    let is_permit = |other: &&Child| matches!(other.mode, Mode::Permit { .. });
    if entry.set_stand(Some(stand)) && from_here.take_while(is_permit).nth(1).is_some() {
        let (entry, path) = (Arc::clone(entry), node.path.clone());
        let runtime = entry.session.servers.runtime.clone();
        runtime.spawn(async move {
            let mark = async { entry.session.client().await?.set_data(&path, &entry.paths.data, None).await };
            // If it fails the one behind sees the promotion when it renews.
            let _ = entry.session.ask(mark).await;
        });
    }
    true
}
