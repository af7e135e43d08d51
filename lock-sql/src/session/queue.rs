//! Standing in the server's queue, for longer than one call lasts.
//!
//! A session that waits is busy until its turn comes, so a place in the queue is a question under way. A call that has
//! waited long enough leaves it in the care of the store, and the same task's next call for the same lock takes it up where it is: the
//! core asks again after a moment as long as somebody wants the lock. A place that nobody takes up is closed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use onelock_core::{LockName, Mode};

use super::asked::{Asked, Reply};
use super::dialect::Id;
use super::names::Key;
use super::turns::Permit;

/// How long a place is kept for the next call: far longer than the pause before it.
pub(super) const KEPT: Duration = Duration::from_millis(100);

/// A place in the server's queue.
pub(super) struct Place<C> {
    pub(super) of: Of,
    pub(super) id: Id,
    pub(super) key: Key,
    pub(super) asked: Asked<C>,
    pub(super) permit: Permit<C>,
}

/// The places that wait for a call.
pub(super) struct Places<C>(Mutex<HashMap<Of, VecDeque<Place<C>>>>);

/// What a place is a place for: a lock, and the task that asks for it. Who asks in another task comes later, and has a place of
/// its own: those who wait in one client would overtake each other else.
pub(super) type Of = (LockName, Mode, Option<tokio::task::Id>);

/// The place that the task which calls this has, or would have.
pub(super) fn of(name: &LockName, mode: Mode) -> Of {
    (name.clone(), mode, tokio::task::try_id())
}

impl<C> Default for Places<C> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<C> Places<C> {
    pub(super) fn keep(&self, place: Place<C>) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.entry(place.of.clone()).or_default().push_back(place);
    }

    /// The oldest one, or this one.
    pub(super) fn take(&self, of: &Of, id: Option<Id>) -> Option<Place<C>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = places.get_mut(of)?;
        let place = match id {
            None => queue.pop_front(),
            Some(id) => queue.iter().position(|place| place.id == id).and_then(|at| queue.remove(at)),
        };
        if queue.is_empty() {
            places.remove(of);
        }
        place
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// How waiting for an answer ended.
pub(super) enum Waited<T> {
    Answered(T),
    /// It took longer than the limit.
    Late,
    /// Whoever asked has gone away.
    Deserted,
}

/// Waits for the answer to a question, which goes on afterwards if there is none.
///
/// The core never cuts a call short: when its caller goes away, or stands still, the rest of it moves to a task of its own. With
/// `notice` that ends the waiting, too. A call that moved for another reason is asked again and goes on.
pub(super) async fn patiently<C>(asked: &mut Asked<C>, limit: Duration, notice: bool) -> Waited<Reply<C>> {
    let task = tokio::task::try_id();
    let until = asked.until(limit);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(reply) = asked.poll(cx) {
            return Poll::Ready(Waited::Answered(reply));
        }
        if notice && tokio::task::try_id() != task {
            return Poll::Ready(Waited::Deserted);
        }
        asked.poll_late(until, cx).map(|()| Waited::Late)
    })
    .await
}
