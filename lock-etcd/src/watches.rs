//! The watches of a client, all on one stream: one for each entry that a waiter waits for.
//!
//! etcd serves a watch that starts at a past revision from a loop that runs every 100 ms. So a watch starts at the present, and
//! what was there before is read after it stands. The server picks the revision before it adds the watch: one that it opens while
//! a write is committed falls into the loop. An answer of the same revision from after that shows that it did not: that to the end
//! of an earlier watch, which is sent just behind for this reason, or the reading. Without it the watch is opened again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{Client, WatchFilterType, WatchOptions, WatchRequestSender};
use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::client::{Cluster, closed};
use crate::error::Failure;
use crate::keys::Blocker;
use crate::line;

#[cfg(test)]
mod tests;

/// The type of an event that a key is gone, however it was deleted.
const DELETE: i32 = 1;

/// How often a watch that may be served late is opened again.
const AGAIN: usize = 3;

/// How many watches of keys that are gone may be open until they are closed without another to open.
const ENDED: usize = 16;

/// How long the stream stays open without a watch.
const LINGER: Duration = Duration::from_secs(10);

/// What a waiter knows of those ahead. A wait that is dropped leaves it to the next one of the same entry: its client begins a new
/// one at each renewal.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) watched: Vec<Watching>,
    /// Whether all of those ahead, and no others, are watched, and were read after their watches stood.
    pub(crate) settled: bool,
}

impl View {
    pub(crate) fn is_watched(&self, blocker: &Blocker) -> bool {
        self.watched.iter().any(|watch| watch.blocker == *blocker)
    }
}

/// The watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    pub(crate) cluster: Arc<Cluster>,
    state: Mutex<State>,
    /// Notified when there is something to send.
    orders: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the watch on the stream. No number comes again.
    by_id: HashMap<i64, watch::Sender<Seen>>,
    last_id: i64,
    /// What the stream has not been sent yet: watches to open and to close.
    open: Vec<(i64, Vec<u8>)>,
    close: Vec<i64>,
    /// The watch that the server has added last, and the revision that it picked.
    added: Option<(i64, i64)>,
    running: bool,
}

/// What a watch has seen of its key.
#[derive(Clone, Debug)]
enum Seen {
    Nothing,
    /// What happens after this revision comes, and at once where the watch is known to be prompt.
    Stands {
        revision: i64,
        prompt: bool,
    },
    /// It was deleted in this revision.
    Gone(i64),
    Broken(Error),
}

/// A waiter for the deletion of a key. The watch ends with it.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) blocker: Blocker,
    id: i64,
    /// How often it may be opened again.
    again: usize,
    seen: watch::Receiver<Seen>,
    watches: Arc<Watches>,
}

impl Watching {
    /// The revision in which the key was deleted.
    pub(crate) async fn gone(&mut self) -> Result<i64> {
        let seen = self.seen.wait_for(|seen| matches!(seen, Seen::Gone(_) | Seen::Broken(_))).await;
        revision(seen.map(|seen| seen.clone()))
    }

    /// Ends when the watch stands, or its key is gone; the revision. What is read has to be as new.
    pub(crate) async fn stands(&mut self) -> Result<i64> {
        let cluster = &self.watches.cluster;
        let (endpoint, limit) = (cluster.current()?, cluster.connect_time());
        match timeout(limit, self.seen.wait_for(|seen| !matches!(seen, Seen::Nothing))).await {
            Ok(seen) => revision(seen.map(|seen| seen.clone())),
            Err(_) => {
                cluster.fail_over(endpoint);
                Err(Cluster::late(limit))
            }
        }
    }

    /// The key is there, in a `revision` from after the watch stood: whether its deletion will be shown at once, as far as that can
    /// be had. If not, the watch is opened again, and the key is to be read when it stands.
    pub(crate) fn is_prompt(&mut self, revision: i64) -> bool {
        let Seen::Stands { revision: stands, prompt } = *self.seen.borrow() else { return true };
        if prompt || revision == stands || self.again == 0 {
            self.again = 0;
            return true;
        }
        let again = self.again - 1;
        *self = self.watches.watch(&self.blocker);
        self.again = again;
        false
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.watches.state.lock();
        if state.by_id.remove(&self.id).is_none() {
            return;
        }
        let unsent = state.open.len();
        state.open.retain(|(id, _)| *id != self.id);
        if state.open.len() == unsent {
            state.close.push(self.id);
        }
        self.watches.orders.notify_one();
    }
}

fn revision(seen: Result<Seen, watch::error::RecvError>) -> Result<i64> {
    match seen {
        Ok(Seen::Stands { revision, .. } | Seen::Gone(revision)) => Ok(revision),
        Ok(Seen::Broken(error)) => Err(error),
        Ok(Seen::Nothing) | Err(_) => Err(closed()),
    }
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self { cluster, state: Mutex::default(), orders: Notify::new() })
    }

    /// Watches for the deletion of a key.
    pub(crate) fn watch(self: &Arc<Self>, blocker: &Blocker) -> Watching {
        let (tell, seen) = watch::channel(Seen::Nothing);
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.by_id.insert(id, tell);
        state.open.push((id, blocker.0.clone()));
        if !std::mem::replace(&mut state.running, true) {
            self.cluster.runtime.spawn(Arc::clone(self).run());
        }
        drop(state);
        self.orders.notify_one();
        Watching { blocker: blocker.clone(), id, again: AGAIN, seen, watches: Arc::clone(self) }
    }

    /// The task: one stream, until it breaks. Its waiters then ask again.
    async fn run(self: Arc<Self>) {
        match self.connected().await {
            Ok(()) => {}
            // One watch has no right: its waiter learns it from its own read, and the others go on.
            Err(Failure::StaleToken(text)) => self.fail(&Error::new(ErrorKind::Unavailable, text)),
            Err(failure) => self.fail(&failure.into()),
        }
    }

    /// Ends every watch.
    pub(crate) fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        for (_, seen) in state.by_id.drain() {
            seen.send_replace(Seen::Broken(error.clone()));
        }
        let last_id = state.last_id;
        *state = State { last_id, ..State::default() };
    }

    async fn connected(&self) -> Result<(), Failure> {
        let current = self.cluster.current.subscribe();
        let at = self.cluster.current()?;
        let client =
            self.cluster.client(at).await.map_err(|failure| self.cluster.leave(at, None, failure))?;
        self.stream(&client, current).await.map_err(|failure| self.cluster.leave(at, Some(&client), failure))
    }

    /// One stream, until nobody watches any more (`Ok`) or it breaks.
    async fn stream(
        &self,
        client: &Client,
        mut current: watch::Receiver<Option<usize>>,
    ) -> Result<(), Failure> {
        let Some((id, key)) = self.first() else { return Ok(()) };
        let limit = self.cluster.connect_time();
        let open = timeout(limit, client.watch_client().watch(key, Some(options(id)))).await;
        let open = open.map_err(|_| Cluster::late(limit))?;
        let (mut sender, mut answers) = open.map_err(|error| self.cluster.failure(error))?.split();
        self.orders.notify_one();
        loop {
            let idle = self.state.lock().by_id.is_empty();
            tokio::select! {
                message = answers.message() => {
                    let ended = || Error::new(ErrorKind::Unavailable, "etcd ended the stream of watches");
                    let message = message.map_err(|error| self.cluster.failure(error))?.ok_or_else(ended)?;
                    self.take(message.0)?;
                }
                () = self.orders.notified() => {
                    let sent = timeout(limit, self.send(&mut sender)).await;
                    sent.map_err(|_| Cluster::late(limit))??;
                }
                _ = current.changed() => {
                    self.cluster.current()?;
                    let text = "another member of the cluster took over";
                    return Err(Error::new(ErrorKind::Unavailable, text).into());
                }
                () = tokio::time::sleep(LINGER), if idle => {
                    let mut state = self.state.lock();
                    if state.by_id.is_empty() {
                        *state = State { last_id: state.last_id, ..State::default() };
                        return Ok(());
                    }
                }
            }
        }
    }

    /// What to open first on a stream; without anything to open there is to be none.
    fn first(&self) -> Option<(i64, Vec<u8>)> {
        let mut state = self.state.lock();
        let first = state.open.pop();
        state.running = first.is_some();
        first
    }

    /// What to open and what to close.
    fn orders(&self) -> (Vec<(i64, Vec<u8>)>, Vec<i64>) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.open), std::mem::take(&mut state.close))
    }

    async fn send(&self, sender: &mut WatchRequestSender) -> Result<(), Failure> {
        let (open, close) = self.orders();
        let work = async {
            for (id, key) in open {
                sender.watch(key, Some(options(id))).await?;
            }
            for id in close {
                sender.cancel(id).await?;
            }
            Ok(())
        };
        work.await.map_err(|error| self.cluster.failure(error))
    }

    /// Takes one message of the stream.
    fn take(&self, message: PbWatchResponse) -> Result<(), Failure> {
        let reason = &message.cancel_reason;
        if message.canceled && ["permission denied", "auth", "user"].iter().any(|word| reason.contains(word))
        {
            // The stream has the token that it was opened with. A client without the right to read learns that from the read.
            return Err(Failure::StaleToken(reason.clone()));
        }
        // None of a watch that the server has ended since its revision was compacted.
        let revision = message.header.as_ref().map_or(0, |header| header.revision);
        let mut state = self.state.lock();
        let State { by_id, close, added, .. } = &mut *state;
        // Answers come in the order of what was sent; events may come late.
        if (message.created || message.canceled)
            && let Some((id, picked)) = added.take()
            && picked == revision
            && let Some(seen) = by_id.get(&id)
        {
            seen.send_if_modified(|seen| {
                if let Seen::Stands { prompt, .. } = seen {
                    *prompt = true;
                }
                false
            });
        }
        let Some(seen) = by_id.get(&message.watch_id) else { return Ok(()) };
        if message.canceled {
            let text = format!("etcd ended a watch: {reason}");
            return Err(Error::new(ErrorKind::Unavailable, text).into());
        }
        if message.created {
            line::revision(message.header.as_ref())?;
            *added = Some((message.watch_id, revision));
            seen.send_replace(Seen::Stands { revision, prompt: false });
        }
        let deleted = message.events.iter().rev().find(|event| event.r#type == DELETE);
        if let Some(kv) = deleted.and_then(|event| event.kv.as_ref()) {
            seen.send_replace(Seen::Gone(kv.mod_revision));
            by_id.remove(&message.watch_id);
            // Its end is sent behind the next one that is opened.
            close.push(message.watch_id);
            if close.len() >= ENDED {
                self.orders.notify_one();
            }
        }
        Ok(())
    }
}

/// A watch for deletions, from the present on.
fn options(id: i64) -> WatchOptions {
    WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut])
}
