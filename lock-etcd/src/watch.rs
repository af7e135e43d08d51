//! The watch of one line: what it knows, and who waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::proto::PbEvent;
use onelock_core::flight::SingleFlight;
use onelock_core::{Error, FencingToken, Mode, Result, Wake};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::far::{Mark, Pace, Way, is_far, mark};
use crate::keys::{Seat, Span};
use crate::lines::Reading;
use crate::mirror::{Known, Mirror};
use crate::orders::Orders;

/// The type of an event that a key is gone, whoever or whatever deleted it.
const DELETE: i32 = 1;

/// How long a watch stays open without a waiter.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// The watch of one name.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) span: Span,
    inner: Mutex<Inner>,
    /// Told when the phase changes.
    changed: Notify,
    /// One reads the line for all.
    pub(crate) reading: SingleFlight<Result<Arc<Reading>>>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    /// The watch of the line on the stream.
    line: Option<i64>,
    mirror: Mirror,
    /// What is watched instead of the line, or is about to be.
    mark: Option<Mark>,
    /// Since when the line is not followed, and how it moved the last time.
    way: Option<Way>,
    pace: Option<Pace>,
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
    /// Every event from this revision on comes, and the end of the mark; all that wait here are behind it.
    Far(i64),
    Failed(Error),
}

impl Watch {
    pub(crate) fn new(span: Span) -> Self {
        let inner = Inner {
            phase: Phase::Opening,
            line: None,
            mirror: Mirror::default(),
            mark: None,
            way: None,
            pace: None,
            waiters: HashMap::new(),
            users: 0,
            idle_since: Instant::now(),
        };
        Self { span, inner: Mutex::new(inner), changed: Notify::new(), reading: SingleFlight::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it on the stream.
    pub(crate) fn open(self: &Arc<Self>, orders: &mut Orders) {
        self.lock().line = Some(orders.line(self));
    }

    /// Closes what of it is open on the stream.
    pub(crate) fn close(&self, orders: &mut Orders) {
        let mut inner = self.lock();
        let mark = inner.mark.take().map(|mark| mark.id);
        inner.line.take().into_iter().chain(mark).for_each(|id| orders.close(id));
    }

    /// Whether this is the number of one of its watches on the stream.
    pub(crate) fn has(&self, id: i64) -> bool {
        let inner = self.lock();
        inner.line == Some(id) || inner.mark.as_ref().is_some_and(|mark| mark.id == id)
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
                Phase::Live | Phase::Far(_) => return Ok(()),
                Phase::Failed(error) => return Err(error.clone()),
                Phase::Opening => {}
            }
            changed.await;
        }
    }

    /// One of its watches on the stream tells what happens after this revision.
    pub(crate) fn stands(&self, id: i64, revision: i64) {
        let mut inner = self.lock();
        if let Some(mark) = inner.mark.as_mut().filter(|mark| mark.id == id) {
            mark.stands = Some(revision);
        }
        if inner.line == Some(id) && matches!(inner.phase, Phase::Opening) {
            inner.phase = Phase::Live;
            inner.mirror = Mirror::from(revision);
            drop(inner);
            self.changed.notify_waiters();
        }
    }

    /// Nothing that was known counts any more, and nothing of it is open. Whoever waits looks again when the watch stands: one
    /// reading for all.
    pub(crate) fn reopens(&self) {
        let mut inner = self.lock();
        (inner.line, inner.mark) = (None, None);
        inner.look_again();
    }

    /// Follows the line, or stops to, whichever is due: see [`crate::far`]. False when it is not needed any more.
    pub(crate) fn turn(self: &Arc<Self>, orders: &mut Orders) -> bool {
        let mut inner = self.lock();
        let Inner { phase, line, mirror, mark: watched, waiters, users, way, pace, .. } = &mut *inner;
        let unused = *users == 0;
        match (&*phase, &*watched) {
            (Phase::Live, Some(_)) if unused && !mirror.follows() => {
                drop(inner);
                self.close(orders);
                return false;
            }
            (Phase::Live, None) if is_far(mirror, waiters) => {
                if let Some(Seat { number, key, .. }) = mark(mirror, waiters) {
                    let (id, number, key) = (orders.end_of(self, key), *number, key.clone());
                    *watched = Some(Mark { id, number, key, stands: None, gone: false });
                }
            }
            (Phase::Live, Some(mark)) if !is_far(mirror, waiters) || mark.is_void(mirror, waiters) => {
                orders.close(mark.id);
                *watched = None;
            }
            (Phase::Live, Some(mark)) if mark.is_sure(mirror) => {
                line.take().into_iter().for_each(|id| orders.close(id));
                let begins = Way::up_to(mark, mirror);
                let later = begins.ends(pace.or_else(|| Pace::of(mirror)));
                *line = Some(orders.line_from(self, later));
                *way = Some(begins);
                *phase = Phase::Far(later);
                *mirror = Mirror::default();
            }
            (Phase::Far(_), Some(mark)) if mark.gone => {
                if unused {
                    drop(inner);
                    self.close(orders);
                    return false;
                }
                inner.follow(self, orders);
            }
            _ => {}
        }
        true
    }

    /// Follows the line again for somebody who is ahead of what is watched.
    pub(crate) fn come_near(self: &Arc<Self>, orders: &mut Orders) {
        let mut inner = self.lock();
        if matches!(inner.phase, Phase::Far(_)) {
            inner.follow(self, orders);
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
            if let Some(way) = inner.way.take() {
                inner.pace = way.pace(&inner.mirror);
            }
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
        match inner.phase {
            Phase::Live => Some((inner.mirror.complete(), inner.mirror.is_against(mode))),
            // Behind the mark.
            Phase::Far(_) => Some((0, true)),
            Phase::Opening | Phase::Failed(_) => None,
        }
    }

    /// Takes what one message brings: whole revisions. Whether to [turn](Self::turn).
    pub(crate) fn happened(&self, id: i64, events: Vec<PbEvent>) -> bool {
        let mut inner = self.lock();
        if let Some(mark) = inner.mark.as_mut().filter(|mark| mark.id == id) {
            mark.gone |= events.iter().any(|event| event.r#type == DELETE);
            return mark.gone;
        }
        if inner.line != Some(id) {
            return false;
        }
        if let Phase::Far(from) = inner.phase {
            // From here on it is followed again.
            inner.look_again();
            (inner.phase, inner.mirror) = (Phase::Live, Mirror::from(from - 1));
        }
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
        inner.mark.is_some() || is_far(&inner.mirror, &inner.waiters)
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
        match inner.phase {
            Phase::Live => {}
            Phase::Far(_) => {
                let behind = inner.mark.as_ref().is_some_and(|mark| number > Some(mark.number));
                return if behind { Look::Later(inner.wait(key)) } else { Look::Ahead };
            }
            Phase::Opening | Phase::Failed(_) => return Look::Again,
        }
        match inner.mirror.standing(key, number) {
            Known::Holds(number) => Look::Now(held(number)),
            Known::Gone => Look::Now(Ok(Wake::Ask)),
            Known::Nothing => Look::Read,
            Known::Waits(_) | Known::Coming => Look::Later(inner.wait(key)),
        }
    }
}

impl Inner {
    fn wait(&mut self, key: &[u8]) -> oneshot::Receiver<Told> {
        let (tell, told) = oneshot::channel();
        self.waiters.insert(key.to_vec(), tell);
        told
    }

    /// Opens the watch of the line in place of the mark's.
    fn follow(&mut self, watch: &Arc<Watch>, orders: &mut Orders) {
        let mark = self.mark.take().map(|mark| mark.id);
        self.line.take().into_iter().chain(mark).for_each(|id| orders.close(id));
        self.line = Some(orders.line(watch));
        self.look_again();
    }

    fn look_again(&mut self) {
        self.phase = Phase::Opening;
        self.mirror = Mirror::default();
        for (_, waiter) in self.waiters.drain() {
            let _ = waiter.send(Told::LookAgain);
        }
    }

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
    /// It may be ahead of what is watched: the line has to be followed first.
    Ahead,
}

/// What a waiter is told.
#[derive(Debug)]
pub(crate) enum Told {
    /// How the wait ends.
    Wake(Result<Wake>),
    /// The line is not known any more, or has to be followed again.
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
