//! Waiting: watch the entries that keep one waiting, read once that they are there, and read again when one of them is gone.
//!
//! etcd serves a watch that starts at a past revision from a loop that runs every 100 ms. So a watch starts at the present, and
//! what was there before is read after it stands. All watches of a client are on one stream, one for each key, however many wait
//! for it. What is read may be as old as the event that it follows: it comes from the same member, without asking the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{WatchFilterType, WatchOptions, WatchRequestSender};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use onelock_core::{Error, ErrorKind, FencingToken, HolderId, HolderMap, Result, Ticket, Wake};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::client::{Cluster, closed};
use crate::entries::Entries;
use crate::error::Failure;
use crate::keys::{Blocker, Keys};
use crate::line::{self, Waiter};

/// The type of an event that a key is gone, however it was deleted.
const DELETE: i32 = 1;

/// How long the stream stays open without a watch.
const LINGER: Duration = Duration::from_secs(10);

/// The longest pause before a waiter asks again that could not be served.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until the entry holds or is gone. An outage does not end it: that is the client's to decide.
pub(crate) async fn wait(
    keys: &Keys,
    watches: &Arc<Watches>,
    entries: &Entries,
    ticket: &Ticket,
) -> Result<Wake> {
    let mut pause = Duration::from_millis(20);
    loop {
        match until_it_holds(keys, watches, entries, ticket).await {
            Err(error) if error.is_retryable() => {}
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn until_it_holds(
    keys: &Keys,
    watches: &Arc<Watches>,
    entries: &Entries,
    ticket: &Ticket,
) -> Result<Wake> {
    let span = keys.line(&ticket.name);
    let key = span.entry(ticket.mode, ticket.holder);
    let number = match ticket.token {
        Some(token) => Some(token.get()),
        None => line::read_number(&watches.cluster, &key).await?,
    };
    let Some(number) = number else { return Ok(Wake::Ask) };
    let waiter = Waiter { span, key, mode: ticket.mode, number };
    let mut kept =
        Kept { watches, entries, holder: ticket.holder, view: watches.view(ticket.holder, number, entries) };
    let View { ahead, watched, seen, settled } = &mut kept.view;
    loop {
        watched.retain(|watch| ahead.contains(&watch.blocker));
        let new = ahead.iter().filter(|blocker| watched.iter().all(|watch| watch.blocker != **blocker));
        let new: Vec<_> = new.map(|blocker| watches.watch(blocker)).collect();
        if new.is_empty() && !ahead.is_empty() {
            // All of them were read after their watches stood.
            *settled = true;
            let gone = select_all(watched.iter_mut().map(|watch| watch.gone().boxed())).await.0;
            *settled = false;
            // What is watched stays so while it is read who is left.
            (*seen, *ahead) = ((*seen).max(gone?), Arc::default());
        }
        watched.extend(new);
        for watch in &mut *watched {
            *seen = (*seen).max(watches.stands(watch).await?);
        }
        // In a place of its own: a waiter keeps no room for requests while it waits.
        let read = Box::pin(waiter.ahead(&watches.cluster, ahead, *seen)).await?;
        let Some(read) = read else { return Ok(Wake::Ask) };
        *ahead = read;
        entries.change(ticket.holder, |own| own.ahead = Some(Arc::clone(ahead)));
        if ahead.is_empty() {
            return FencingToken::new(number).map(Wake::Held);
        }
    }
}

/// What a waiter knows of those ahead.
#[derive(Debug)]
struct View {
    ahead: Arc<[Blocker]>,
    watched: Vec<Watching>,
    /// The latest revision that was seen.
    seen: i64,
    /// Whether all of those ahead are watched, and were read after that.
    settled: bool,
}

/// A wait that is dropped leaves what it knows to the next one of the same entry: its client begins a new one at each renewal.
struct Kept<'a> {
    watches: &'a Watches,
    entries: &'a Entries,
    holder: HolderId,
    view: View,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut views = self.watches.views();
        // Nobody waits again for an entry that holds or is gone.
        let waits = self.entries.get(self.holder).is_some_and(|own| !own.holds());
        if self.view.settled && waits && self.watches.cluster.open().is_ok() {
            let view = View {
                ahead: std::mem::take(&mut self.view.ahead),
                watched: std::mem::take(&mut self.view.watched),
                ..self.view
            };
            let before = views.insert(self.holder, view);
            drop(views);
            drop(before);
        }
    }
}

/// The watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    cluster: Arc<Cluster>,
    runtime: Handle,
    state: Mutex<State>,
    /// Of waits that were dropped.
    views: Mutex<HolderMap<View>>,
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
    running: bool,
}

/// The watch of a key.
#[derive(Debug)]
struct Watched {
    id: i64,
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
struct Watching {
    blocker: Blocker,
    id: i64,
    seen: watch::Receiver<Seen>,
    watches: Arc<Watches>,
}

impl Watching {
    /// The revision in which the key was deleted.
    async fn gone(&mut self) -> Result<i64> {
        let seen = self.seen.wait_for(|seen| matches!(seen, Seen::Gone(_) | Seen::Broken(_))).await;
        revision(seen.map(|seen| seen.clone()))
    }
}

/// A watch ends with the last who waits for it.
impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.watches.lock();
        let Some(own) = state.by_key.get_mut(&self.blocker.0).filter(|own| own.id == self.id) else { return };
        own.users -= 1;
        if own.users == 0 {
            state.by_key.remove(&self.blocker.0);
            state.end(self.id);
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
        Arc::new(Self {
            cluster,
            runtime,
            state: Mutex::default(),
            views: Mutex::default(),
            orders: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn views(&self) -> MutexGuard<'_, HolderMap<View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known for a wait that begins.
    fn view(&self, holder: HolderId, number: i64, entries: &Entries) -> View {
        let kept = self.views().remove(&holder);
        kept.unwrap_or_else(|| {
            let ahead = entries.get(holder).and_then(|own| own.ahead).unwrap_or_default();
            View { ahead, watched: Vec::new(), seen: number, settled: false }
        })
    }

    /// Ends what dropped waits of this entry have left.
    pub(crate) fn forget(&self, holder: HolderId) {
        let view = self.views().remove(&holder);
        drop(view);
    }

    /// Watches for the deletion of a key, with all who do.
    fn watch(self: &Arc<Self>, blocker: &Blocker) -> Watching {
        let mut state = self.lock();
        if let Some(own) = state.by_key.get_mut(&blocker.0) {
            own.users += 1;
            let (id, seen) = (own.id, own.seen.subscribe());
            drop(state);
            return Watching { blocker: blocker.clone(), id, seen, watches: Arc::clone(self) };
        }
        state.last_id += 1;
        let id = state.last_id;
        let (tell, seen) = watch::channel(Seen::Nothing);
        state.by_key.insert(blocker.0.clone(), Watched { id, seen: tell, users: 1 });
        state.by_id.insert(id, blocker.0.clone());
        state.open.push(id);
        if !std::mem::replace(&mut state.running, true) {
            self.runtime.spawn(Arc::clone(self).run());
        }
        drop(state);
        self.orders.notify_one();
        Watching { blocker: blocker.clone(), id, seen, watches: Arc::clone(self) }
    }

    /// Ends when the watch stands, or its key is gone; the revision.
    async fn stands(&self, watching: &mut Watching) -> Result<i64> {
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
        let views = std::mem::take(&mut *self.views());
        drop(views);
        let mut state = self.lock();
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
            let idle = self.lock().by_key.is_empty();
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
                    let mut state = self.lock();
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
        let mut state = self.lock();
        let first = state.open.pop().and_then(|id| Some((id, state.by_id.get(&id)?.clone())));
        state.close.clear();
        state.running = first.is_some();
        first
    }

    /// What to open and what to close.
    fn orders(&self) -> (Vec<(i64, Vec<u8>)>, Vec<i64>) {
        let mut state = self.lock();
        let State { open, close, by_id, .. } = &mut *state;
        let open = open.drain(..).filter_map(|id| Some((id, by_id.get(&id)?.clone()))).collect();
        (open, std::mem::take(close))
    }

    async fn send(&self, sender: &mut WatchRequestSender) -> Result<(), Failure> {
        let (open, close) = self.orders();
        let work = async {
            for id in close {
                sender.cancel(id).await?;
            }
            for (id, key) in open {
                sender.watch(key, Some(options(id))).await?;
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
            // The stream has the token that it was opened with. Who has no right to read is told by the reading.
            return Err(Failure::StaleToken(reason.clone()));
        }
        let mut state = self.lock();
        let Some(key) = state.by_id.get(&message.watch_id).cloned() else { return Ok(()) };
        if message.canceled {
            let text = format!("etcd ended a watch: {reason}");
            return Err(Error::new(ErrorKind::Unavailable, text).into());
        }
        if message.created
            && let Some(own) = state.by_key.get(&key)
        {
            own.seen.send_replace(Seen::Stands(line::revision(message.header.as_ref())?));
        }
        let deleted = message.events.iter().rev().find(|event| event.r#type == DELETE);
        if let Some(kv) = deleted.and_then(|event| event.kv.as_ref()) {
            // Who watches this key from now on watches another entry.
            if let Some(own) = state.by_key.remove(&key) {
                own.seen.send_replace(Seen::Gone(kv.mod_revision));
            }
            state.end(message.watch_id);
            self.orders.notify_one();
        }
        Ok(())
    }
}

/// A watch for deletions, from the present on.
fn options(id: i64) -> WatchOptions {
    WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut])
}
