//! Sessions that hold nothing: kept for the next lock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::dialect::Session;

/// How many sessions are kept when nothing happens.
const KEPT: usize = 4;

/// The session that was used last is on top: it is the warmest, and the others can go.
pub(super) struct Spares<C> {
    free: Mutex<VecDeque<(Session<C>, Instant)>>,
    /// Told when there is one that the server would end by and by.
    pub(super) more: Notify,
    /// Wakes one call for each session that is given back, or the next one that asks.
    pub(super) given: Notify,
}

/// What to do with a session that was not used for a while.
pub(super) enum Stale<C> {
    /// Have the server let it be idle, then give it back.
    Settle(Session<C>),
    /// There are enough others.
    Close(Session<C>),
}

impl<C> Default for Spares<C> {
    fn default() -> Self {
        Self { free: Mutex::default(), more: Notify::new(), given: Notify::new() }
    }
}

impl<C> Spares<C> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Session<C>, Instant)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give(&self, session: Session<C>) {
        let limited = !session.idle.is_zero();
        self.lock().push_back((session, Instant::now()));
        self.given.notify_one();
        if limited {
            self.more.notify_one();
        }
    }

    pub(super) fn take(&self) -> Option<Session<C>> {
        Some(self.lock().pop_back()?.0)
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// The sessions that have been idle for a third of what their server allows, and when to look again; never, when there
    /// is none with a limit.
    pub(super) fn stale(&self) -> (Vec<Stale<C>>, Option<Duration>) {
        let (mut free, mut due, mut next) = (self.lock(), Vec::new(), None::<Duration>);
        let all = std::mem::take(&mut *free);
        let mut count = all.len();
        for (session, since) in all {
            let left = (session.idle / 3).saturating_sub(since.elapsed());
            if session.idle.is_zero() {
                free.push_back((session, since));
            } else if !left.is_zero() {
                next = Some(next.map_or(left, |next| next.min(left)));
                free.push_back((session, since));
            } else if count > KEPT {
                count -= 1;
                due.push(Stale::Close(session));
            } else {
                due.push(Stale::Settle(session));
            }
        }
        (due, next)
    }
}
