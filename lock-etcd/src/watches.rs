//! The watches of a client: all on one stream, one for each key, however many wait for it.
//!
//! etcd serves a watch that starts at a past revision from a loop that runs every 100 ms. So a watch starts at the present, and
//! what was there before is read after it stands. The server picks the revision before it adds the watch: one that it opens while
//! a write is committed falls into the loop. An answer of the same revision from after that shows that it did not: that to the end
//! of an earlier watch, which is sent just behind for this reason, or the reading. Without it the watch is opened again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{WatchFilterType, WatchOptions, WatchRequestSender};
use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
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

/// How many watches of keys that are gone may be open until they are closed.
const ENDED: usize = 16;

/// How long the stream stays open without a watch.
const LINGER: Duration = Duration::from_secs(10);

/// What a waiter knows of those ahead. A wait that is dropped leaves it to the next one of the same entry: its client begins a new
/// one at each renewal.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) ahead: Arc<[Blocker]>,
    pub(crate) watched: Vec<Watching>,
    /// The latest revision that was seen.
    pub(crate) seen: i64,
    /// Whether all of those ahead are watched, and were read after their watches stood.
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
    cluster: Arc<Cluster>,
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when there is something to send.
    orders: Notify,
}

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<Vec<u8>, Watched>,
    /// By the number of the watch on the stream. No number comes again.
    by_id: HashMap<i64, Vec<u8>>,
    last_id: i64,
    /// What the stream has not been sent yet: watches to open and to close.
    open: Vec<i64>,
    close: Vec<i64>,
    /// The watch that the server has added last, and the revision that it picked.
    added: Option<(i64, i64)>,
    running: bool,
}

/// The watch of a key.
#[derive(Debug)]
struct Watched {
    /// The number of its first watch.
    id: i64,
    /// The numbers of its watches on the stream: the last counts, those before it stay until what it does not show is read.
    open: Vec<i64>,
    /// How often it may be opened again.
    again: usize,
    seen: watch::Sender<Seen>,
    /// How many wait for it.
    users: usize,
}

/// What a watch has seen of its key.
#[derive(Clone, Debug)]
enum Seen {
    Nothing,
    /// What happens after this revision comes.
    Stands(i64),
    /// It was deleted in this revision.
    Gone(i64),
    Broken(Error),
}

/// One who waits for the deletion of a key.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) blocker: Blocker,
    id: i64,
    seen: watch::Receiver<Seen>,
    watches: Arc<Watches>,
}

impl Watching {
    /// Whether the key was deleted. One that is made again needs another watch.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(*self.seen.borrow(), Seen::Gone(_))
    }

    /// The revision in which the key was deleted.
    pub(crate) async fn gone(&mut self) -> Result<i64> {
        let seen = self.seen.wait_for(|seen| matches!(seen, Seen::Gone(_) | Seen::Broken(_))).await;
        revision(seen.map(|seen| seen.clone()))
    }
}

/// A watch ends with the last who waits for it.
impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.watches.state.lock();
        let Some(own) = state.by_key.get_mut(&self.blocker.0).filter(|own| own.id == self.id) else { return };
        own.users -= 1;
        if own.users == 0 {
            state.end_key(&self.blocker.0);
            self.watches.orders.notify_one();
        }
    }
}

fn revision(seen: Result<Seen, watch::error::RecvError>) -> Result<i64> {
    match seen {
        Ok(Seen::Stands(revision) | Seen::Gone(revision)) => Ok(revision),
        Ok(Seen::Broken(error)) => Err(error),
        Ok(Seen::Nothing) | Err(_) => Err(closed()),
    }
}

impl State {
    /// Opens a watch of a key; its number.
    fn open(&mut self, key: &[u8]) -> i64 {
        self.last_id += 1;
        self.by_id.insert(self.last_id, key.to_vec());
        self.open.push(self.last_id);
        self.last_id
    }

    /// What is watched by this watch, unless that was opened again.
    fn newest(&mut self, id: i64) -> Option<&mut Watched> {
        let Self { by_key, by_id, .. } = self;
        by_key.get_mut(by_id.get(&id)?).filter(|own| own.open.last() == Some(&id))
    }

    fn end_key(&mut self, key: &[u8]) -> Option<Watched> {
        let own = self.by_key.remove(key)?;
        own.open.iter().for_each(|id| self.end(*id));
        Some(own)
    }

    fn end(&mut self, id: i64) {
        self.by_id.remove(&id);
        let unsent = self.open.len();
        self.open.retain(|open| *open != id);
        if self.open.len() == unsent {
            self.close.push(id);
        }
    }
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { cluster, runtime, state: Mutex::default(), orders: Notify::new() })
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Watches for the deletion of a key, with all who do.
    pub(crate) fn watch(self: &Arc<Self>, blocker: &Blocker) -> Watching {
        let mut state = self.state.lock();
        if let Some(own) = state.by_key.get_mut(&blocker.0) {
            own.users += 1;
            let (id, seen) = (own.id, own.seen.subscribe());
            drop(state);
            return Watching { blocker: blocker.clone(), id, seen, watches: Arc::clone(self) };
        }
        let id = state.open(&blocker.0);
        let (tell, seen) = watch::channel(Seen::Nothing);
        state
            .by_key
            .insert(blocker.0.clone(), Watched { id, open: vec![id], again: AGAIN, seen: tell, users: 1 });
        if !std::mem::replace(&mut state.running, true) {
            self.runtime.spawn(Arc::clone(self).run());
        }
        drop(state);
        self.orders.notify_one();
        Watching { blocker: blocker.clone(), id, seen, watches: Arc::clone(self) }
    }

    /// The key of a watch that stands is there, in `revision`: whether its deletion will be shown at once, as far as that can be had.
    /// If not, the watch is opened again, and the key is to be read when it stands.
    pub(crate) fn is_prompt(&self, watching: &Watching, revision: i64) -> bool {
        let mut state = self.state.lock();
        let State { by_key, .. } = &mut *state;
        let Some(own) = by_key.get_mut(&watching.blocker.0).filter(|own| own.id == watching.id) else {
            return true;
        };
        let Seen::Stands(stands) = *own.seen.borrow() else { return false };
        if revision < stands {
            // Another one has opened it again meanwhile: what happened since this reading may be shown by nothing.
            return false;
        }
        let prompt = revision == stands || own.again == 0;
        own.again = if prompt { 0 } else { own.again - 1 };
        let newest = own.open.len() - 1;
        let older: Vec<_> = own.open.drain(..newest).collect();
        let orders = !(prompt && older.is_empty());
        older.into_iter().for_each(|id| state.end(id));
        if !prompt {
            let id = state.open(&watching.blocker.0);
            if let Some(own) = state.by_key.get_mut(&watching.blocker.0) {
                own.open.push(id);
                own.seen.send_replace(Seen::Nothing);
            }
        }
        drop(state);
        if orders {
            self.orders.notify_one();
        }
        prompt
    }

    /// Ends when the watch stands, or its key is gone; the revision.
    pub(crate) async fn stands(&self, watching: &mut Watching) -> Result<i64> {
        let endpoint = self.cluster.current();
        let limit = self.cluster.connect_time();
        match timeout(limit, watching.seen.wait_for(|seen| !matches!(seen, Seen::Nothing))).await {
            Ok(seen) => revision(seen.map(|seen| seen.clone())),
            Err(_) => {
                self.cluster.fail_over(endpoint);
                Err(self.cluster.late(limit))
            }
        }
    }

    /// The task: one stream, for as long as there is a watch. Who waits when it breaks asks again.
    async fn run(self: Arc<Self>) {
        let logins = self.cluster.logins();
        if let Err(failure) = self.stream().await {
            let failure = self.cluster.settle(logins, self.cluster.connect_time(), failure).await;
            self.fail(&failure.into());
        }
    }

    /// Ends every watch.
    pub(crate) fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        for (_, own) in state.by_key.drain() {
            own.seen.send_replace(Seen::Broken(error.clone()));
        }
        let last_id = state.last_id;
        *state = State { last_id, ..State::default() };
    }

    /// One stream, until nobody watches any more (`Ok`) or it breaks.
    async fn stream(&self) -> Result<(), Failure> {
        let mut moved = self.cluster.moved.subscribe();
        let (_, client) = self.cluster.client().await?;
        let Some((id, key)) = self.first() else { return Ok(()) };
        let limit = self.cluster.connect_time();
        let open = timeout(limit, client.watch_client().watch(key, Some(options(id)))).await;
        let open = open.map_err(|_| self.cluster.late(limit))?;
        let (mut sender, mut answers) = open.map_err(|error| self.cluster.failure(error))?.split();
        self.orders.notify_one();
        loop {
            let idle = self.state.lock().by_key.is_empty();
            tokio::select! {
                message = answers.message() => {
                    let ended = || Error::new(ErrorKind::Unavailable, "etcd ended the stream of watches");
                    let message = message.map_err(|error| self.cluster.failure(error))?.ok_or_else(ended)?;
                    self.take(message.0)?;
                }
                () = self.orders.notified() => {
                    let sent = timeout(limit, self.send(&mut sender)).await;
                    sent.map_err(|_| self.cluster.late(limit))??;
                }
                _ = moved.changed() => {
                    self.cluster.open()?;
                    let text = "another member of the cluster took over";
                    return Err(Error::new(ErrorKind::Unavailable, text).into());
                }
                () = tokio::time::sleep(LINGER), if idle => {
                    let mut state = self.state.lock();
                    if state.by_key.is_empty() {
                        state.running = false;
                        state.close.clear();
                        return Ok(());
                    }
                }
            }
        }
    }

    /// What to open first on a stream; without anything to open there is to be none.
    fn first(&self) -> Option<(i64, Vec<u8>)> {
        let mut state = self.state.lock();
        let first = state.open.pop().and_then(|id| Some((id, state.by_id.get(&id)?.clone())));
        state.close.clear();
        state.running = first.is_some();
        first
    }

    /// What to open and what to close.
    fn orders(&self) -> (Vec<(i64, Vec<u8>)>, Vec<i64>) {
        let mut state = self.state.lock();
        let State { open, close, by_id, .. } = &mut *state;
        let open = open.drain(..).filter_map(|id| Some((id, by_id.get(&id)?.clone()))).collect();
        (open, std::mem::take(close))
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
            // The stream has the token that it was opened with. Who has no right to read learns that from the reading.
            return Err(Failure::StaleToken(reason.clone()));
        }
        let mut state = self.state.lock();
        let revision = line::revision(message.header.as_ref())?;
        // Answers come in the order of what was sent; events may come late.
        if (message.created || message.canceled)
            && let Some((id, picked)) = state.added.take()
            && picked == revision
            && let Some(own) = state.newest(id)
        {
            own.again = 0;
        }
        let Some(key) = state.by_id.get(&message.watch_id).cloned() else { return Ok(()) };
        if message.canceled {
            let text = format!("etcd ended a watch: {reason}");
            return Err(Error::new(ErrorKind::Unavailable, text).into());
        }
        if message.created {
            state.added = Some((message.watch_id, revision));
            if let Some(own) = state.newest(message.watch_id) {
                own.seen.send_replace(Seen::Stands(revision));
            }
        }
        let deleted = message.events.iter().rev().find(|event| event.r#type == DELETE);
        if let Some(kv) = deleted.and_then(|event| event.kv.as_ref()) {
            // Who watches this key from now on watches another entry.
            if let Some(own) = state.end_key(&key) {
                own.seen.send_replace(Seen::Gone(kv.mod_revision));
            }
            // Its end is sent behind the next one that is opened.
            if state.close.len() >= ENDED {
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
