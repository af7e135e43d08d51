//! Waiting: one watch on the one node that matters, kept over dropped calls.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use onelock_core::{Error, ErrorKind, Result, Ticket, Wake};
use zookeeper_client as zk;

use crate::entries::{Entries, Entry, Watch};
use crate::error::failed;
use crate::line::{Ahead, Line};
use crate::session::Servers;

/// Ends when the entry holds, or when asking again may help.
pub(crate) async fn wait(servers: &Servers, entries: &Entries, ticket: &Ticket) -> Result<Wake> {
    let key = (ticket.name.clone(), ticket.holder);
    loop {
        let Some(entry) = entries.get(&key, servers.clock.now()) else { return Ok(Wake::Ask) };
        let mut watch = entry.watch.lock().await;
        let Some(node) = entry.node() else { return Ok(Wake::Ask) };
        if entry.is_held() {
            return Ok(Wake::Held(node.token));
        }
        let Some(armed) = &mut *watch else {
            match entry.ahead() {
                // In a place of its own: a waiter keeps no room for requests while it waits.
                Some((ahead, _)) => *watch = Box::pin(set(&entry, &ahead)).await?,
                None => {
                    let line = Box::pin(Line::read(entry.room.session(), &entry.paths.parent)).await?;
                    if !stands(&entry, &line) {
                        // Not in the line any more: asking says so.
                        return Ok(Wake::Ask);
                    }
                }
            }
            continue;
        };
        let event = AssertUnwindSafe(armed).catch_unwind().await;
        *watch = None;
        match event {
            Ok(event) if event.event_type == zk::EventType::Session => return Ok(Wake::Ask),
            Ok(_) => entry.forget_ahead(),
            Err(_) => {
                let text = "the session's task has ended with the runtime it ran on";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
    }
}

/// Sets a watch on what the entry waits for; nothing when the entry holds, or the line is to be read.
async fn set(entry: &Arc<Entry>, ahead: &Ahead) -> Result<Option<Watch>> {
    let (session, parent) = (entry.room.session(), &entry.paths.parent);
    let path = ahead.path(parent);
    let client = session.client().map_err(|error| failed(error, "watch", &path))?;
    let watched = if *ahead == Ahead::Holders {
        match session.ask(client.get_and_watch_children(&path)).await {
            Ok((children, stat, watcher)) => {
                let line = Line::listed(session, parent, Ok((children, stat))).await?.unwrap_or_default();
                Ok((watcher, stands(entry, &line) && !entry.is_held()))
            }
            Err(error) => Err(error),
        }
    } else {
        let watched = session.ask(client.get_and_watch_data(&path)).await;
        // A permit ahead that was marked before the watch was set holds: the line shows that.
        watched.map(|(_, stat, watcher)| (watcher, matches!(ahead, Ahead::Entry(_)) || stat.version == 0))
    };
    match watched {
        Ok((watcher, true)) => return Ok(Some(Box::pin(watcher.changed()))),
        Ok((_, false)) | Err(zk::Error::NoNode) => {}
        Err(error) => return Err(failed(error, "watch", &path)),
    }
    entry.forget_ahead();
    Ok(None)
}

/// Notes how the entry stands in this line; false when it is not there. A permit that was promoted notifies the one behind
/// it, which watches its node, by writing the node's data once more: nothing else in the tree changes then.
pub(crate) fn stands(entry: &Arc<Entry>, line: &Line) -> bool {
    let Some(stand) = line.stand(&entry.child()) else { return false };
    if entry.stands(stand, line.changed) {
        let entry = Arc::clone(entry);
        let runtime = entry.room.servers.runtime.clone();
        runtime.spawn(async move {
            let (Some(node), Ok(client)) = (entry.node(), entry.room.client()) else { return };
            // If it fails the one behind sees the promotion when it renews.
            let _ = entry.room.ask(client.set_data(&node.path, &entry.paths.data, None)).await;
        });
    }
    true
}
