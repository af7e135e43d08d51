//! The watch of one line: what it knows, and who waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::WatchOptions;
use etcd_client::proto::PbEvent;
use lock_core::{Error, FencingToken, Mode, Result, Wake};
use tokio::sync::{Mutex as AsyncMutex, Notify, oneshot};
use tokio::time::Instant;

use crate::keys::{Seat, Span};
use crate::lines::Reading;
use crate::mirror::{Known, Mirror};

/// The type of an event that a key is gone, whoever or whatever deleted it.
const DELETE: i32 = 1;

/// How long a watch stays open without a waiter.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// The watch of one name.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) id: i64,
    pub(crate) span: Span,
    inner: Mutex<Inner>,
    /// Told when the phase changes.
    changed: Notify,
    /// Held while the line is read, so that one reads for all.
    pub(crate) reading: AsyncMutex<()>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    mirror: Mirror,
    /// By key.
    waiters: HashMap<Vec<u8>, oneshot::Sender<Told>>,
    /// How many calls use it now.
    users: usize,
    idle_since: Instant,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Not there yet, or not there any more and being opened again.
    Opening,
    /// Every event from now on comes.
    Live,
    Failed(Error),
}

impl Watch {
    pub(crate) fn new(id: i64, span: Span) -> Self {
        let inner = Inner {
            phase: Phase::Opening,
            mirror: Mirror::default(),
            waiters: HashMap::new(),
            users: 0,
            idle_since: Instant::now(),
        };
        Self { id, span, inner: Mutex::new(inner), changed: Notify::new(), reading: AsyncMutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens in the line from the present on.
    pub(crate) fn options(&self) -> WatchOptions {
        WatchOptions::new().with_range(self.span.end.clone()).with_watch_id(self.id)
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.lock().phase, Phase::Opening)
    }

    pub(crate) fn is_used(&self) -> bool {
        let inner = self.lock();
        inner.users > 0 || inner.idle_since.elapsed() < LINGER
    }

    /// Ends when the watch stands.
    pub(crate) async fn live(&self) -> Result<()> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match &self.lock().phase {
                Phase::Live => return Ok(()),
                Phase::Failed(error) => return Err(error.clone()),
                Phase::Opening => {}
            }
            changed.await;
        }
    }

    pub(crate) fn stands(&self, revision: i64) {
        let mut inner = self.lock();
        inner.phase = Phase::Live;
        inner.mirror = Mirror::from(revision);
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Nothing that was known counts any more. Whoever waits looks again when the watch stands: one reading for all.
    pub(crate) fn reopens(&self) {
        let mut inner = self.lock();
        inner.phase = Phase::Opening;
        inner.mirror = Mirror::default();
        for (_, waiter) in inner.waiters.drain() {
            let _ = waiter.send(Told::LookAgain);
        }
    }

    pub(crate) fn fail(&self, error: Error) {
        let mut inner = self.lock();
        for (_, waiter) in inner.waiters.drain() {
            let _ = waiter.send(Told::Wake(Err(error.clone())));
        }
        inner.phase = Phase::Failed(error);
        drop(inner);
        self.changed.notify_waiters();
    }

    pub(crate) fn learn(&self, reading: &Reading, upto: i64) {
        let mut inner = self.lock();
        if matches!(inner.phase, Phase::Live) && inner.mirror.read(reading, upto) {
            inner.promote();
        }
    }

    /// Up to which number every living entry is known; `None` while events do not come.
    pub(crate) fn known(&self) -> Option<i64> {
        let inner = self.lock();
        matches!(inner.phase, Phase::Live).then(|| inner.mirror.complete())
    }

    /// The same, and whether an entry of this mode that joins now would wait as far as is known.
    pub(crate) fn known_to(&self, mode: Mode) -> Option<(i64, bool)> {
        let inner = self.lock();
        let live = matches!(inner.phase, Phase::Live);
        live.then(|| (inner.mirror.complete(), inner.mirror.is_against(mode)))
    }

    /// Takes what one message brings: whole revisions.
    pub(crate) fn happened(&self, events: Vec<PbEvent>) {
        let mut inner = self.lock();
        for event in events {
            let Some(kv) = event.kv else { continue };
            if event.r#type == DELETE {
                inner.mirror.delete(&kv.key, kv.mod_revision);
                if let Some(waiter) = inner.waiters.remove(&kv.key) {
                    let _ = waiter.send(Told::Wake(Ok(Wake::Ask)));
                }
            } else if kv.create_revision == kv.mod_revision {
                let mode = self.span.mode_of(&kv.key);
                let number = kv.create_revision;
                inner.mirror.join(&Seat { number, key: kv.key, mode, lease: kv.lease, value: Vec::new() });
            }
        }
        inner.promote();
    }

    /// Takes an entry out that the store has deleted: who waits for it here need not wait for the event.
    pub(crate) fn left(&self, key: &[u8]) {
        let mut inner = self.lock();
        inner.mirror.leave(key);
        inner.promote();
    }

    /// Looks where the entry is, and stands ready to be told if it waits: one step, so nothing falls between.
    pub(crate) fn look(&self, key: &[u8], number: Option<i64>) -> Look {
        let mut inner = self.lock();
        if !matches!(inner.phase, Phase::Live) {
            return Look::Again;
        }
        match inner.mirror.standing(key, number) {
            Known::Holds(number) => Look::Now(held(number)),
            Known::Gone => Look::Now(Ok(Wake::Ask)),
            Known::Nothing => Look::Read,
            Known::Waits(_) | Known::Coming => {
                let (tell, told) = oneshot::channel();
                inner.waiters.insert(key.to_vec(), tell);
                Look::Later(told)
            }
        }
    }
}

impl Inner {
    /// Tells the waiters that hold now, and nobody else.
    fn promote(&mut self) {
        if self.waiters.is_empty() {
            return;
        }
        let Self { mirror, waiters, .. } = self;
        for seat in mirror.holders() {
            if let Some(waiter) = waiters.remove(&seat.key) {
                let _ = waiter.send(Told::Wake(held(seat.number)));
            }
        }
    }
}

fn held(number: i64) -> Result<Wake> {
    FencingToken::new(number).map(Wake::Held)
}

/// What a look at a watch says.
pub(crate) enum Look {
    /// How the wait ends.
    Now(Result<Wake>),
    /// It waits: it will be told.
    Later(oneshot::Receiver<Told>),
    /// The line has to be read first.
    Read,
    /// The watch has to stand first.
    Again,
}

/// What a waiter is told.
#[derive(Debug)]
pub(crate) enum Told {
    /// How the wait ends.
    Wake(Result<Wake>),
    /// The watch broke: what happens now nobody will tell.
    LookAgain,
}

/// A call that uses a watch.
pub(crate) struct User(pub(crate) Arc<Watch>);

impl User {
    pub(crate) fn new(watch: Arc<Watch>) -> Self {
        watch.lock().users += 1;
        Self(watch)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.users -= 1;
        inner.idle_since = Instant::now();
    }
}

/// Forgets a waiter whose call ends or is dropped.
pub(crate) struct Waiting<'a> {
    pub(crate) watch: &'a Watch,
    pub(crate) key: &'a [u8],
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.watch.lock().waiters.remove(self.key);
    }
}
