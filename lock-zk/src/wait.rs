//! Waiting: one watch on the one node that matters, kept over dropped calls.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
        let Some(node) = entry.node() else { return Ok(Wake::Ask) };
        if entry.is_held() {
            return Ok(Wake::Held(node.token));
        }
        let Some(watch) = entry.take_watch() else {
            // In a place of its own: a waiter keeps no room for requests while it waits.
            match Box::pin(arm(&entry)).await? {
                Armed::Set(watch) => entry.put_watch(watch),
                Armed::Again => {}
                Armed::Gone => return Ok(Wake::Ask),
            }
            continue;
        };
        let mut armed = Waiting { entry: &entry, watch: Some(watch) };
        let event = AssertUnwindSafe(&mut armed).catch_unwind().await;
        armed.watch = None;
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

/// What came of setting a watch.
enum Armed {
    Set(Watch),
    /// It holds, or waits for something else now.
    Again,
    /// The entry is not in the line any more: asking says so.
    Gone,
}

/// Sets a watch on what the entry waits for.
async fn arm(entry: &Arc<Entry>) -> Result<Armed> {
    let (session, parent) = (entry.room.session(), &entry.paths.parent);
    let Some((ahead, _)) = entry.ahead() else {
        let line = Line::read(session, parent).await?;
        return Ok(if stands(entry, &line) { Armed::Again } else { Armed::Gone });
    };
    let path = match &ahead {
        Ahead::Entry(name) | Ahead::Permit(name) => [parent, "/", name].concat(),
        Ahead::Holders => parent.clone(),
    };
    let client = session.client().map_err(|error| failed(error, "watch", &path))?;
    let (watcher, line) = match &ahead {
        Ahead::Entry(_) | Ahead::Permit(_) => match session.ask(client.get_and_watch_data(&path)).await {
            // Marked before the watch was set: the line behind it says whether that has been seen.
            Ok((_, stat, watcher)) if matches!(ahead, Ahead::Permit(_)) && stat.version > 0 => {
                (Ok(watcher), Some(Line::read(session, parent).await?))
            }
            watched => (watched.map(|(.., watcher)| watcher), None),
        },
        Ahead::Holders => match session.ask(client.get_and_watch_children(&path)).await {
            Ok((children, stat, watcher)) => {
                (Ok(watcher), Line::listed(session, parent, Ok((children, stat))).await?)
            }
            Err(error) => (Err(error), None),
        },
    };
    let watcher = match watcher {
        Ok(watcher) => watcher,
        Err(zk::Error::NoNode) => {
            entry.forget_ahead();
            return Ok(Armed::Again);
        }
        Err(error) => return Err(failed(error, "watch", &path)),
    };
    if let Some(line) = line {
        if !stands(entry, &line) {
            return Ok(Armed::Gone);
        }
        if entry.is_held() || entry.ahead().is_none_or(|(now, _)| now != ahead) {
            return Ok(Armed::Again);
        }
    }
    Ok(Armed::Set(Box::pin(watcher.changed())))
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

/// A watch that is waited for; put back when the call is dropped.
struct Waiting<'a> {
    entry: &'a Arc<Entry>,
    watch: Option<Watch>,
}

impl Future for Waiting<'_> {
    type Output = zk::WatchedEvent;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<zk::WatchedEvent> {
        match &mut self.watch {
            Some(watch) => watch.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.entry.put_watch(watch);
        }
    }
}
