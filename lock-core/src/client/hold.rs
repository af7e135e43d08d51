//! What the guards of one acquisition share, and how they step in and out of it.

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::acquire::Handle;
use super::cancel_safe::CancelSafe;
use super::entry::{Entry, View};
use super::give_back;
use super::guard::Guard;
use super::shared::Client;
use crate::backend::{Release, Ticket};
use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind, Result};
use crate::model::loss::LossReason;
use crate::name::LockName;

/// What the guards of one acquisition share; the outermost one to go gives the lock back.
#[derive(Debug)]
pub(super) struct Hold {
    handle: Handle,
    pub(super) guards: AtomicUsize,
    /// How many of them are on their way.
    away: AtomicUsize,
    /// Whether it was ever entered again.
    entered: AtomicBool,
    /// Keeps the owner's slot while the lock is held.
    _slot: Option<Arc<dyn Any + Send + Sync>>,
}

impl Hold {
    fn view(&self) -> View {
        self.handle.entry.view(self.handle.client.clock.now())
    }

    /// One more guard, unless the last one is going or the lock is lost.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Guard> {
        if let View::Over(reason) = self.view() {
            return Err(lost(&self.handle.entry.ticket().name, reason, self.handle.entry.failure()));
        }
        // Each guard has a part in the `Arc`, which counts no further.
        let more = |n: usize| (n > 0).then(|| n + 1);
        if self.guards.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(lost(&self.handle.entry.ticket().name, LossReason::Released, None));
        }
        self.entered.store(true, Ordering::Release);
        let guard = Guard { hold: Arc::clone(self), out: false, away: AtomicBool::default() };
        if self.handle.entry.is_unused() {
            guard.received();
        }
        Ok(guard)
    }

    /// While all of its guards are on their way nobody has it. With a least time it stays as it is when somebody may have had it: that
    /// time counts for work that has ended, too.
    fn left_to_those_away(&self) {
        let Handle { client, entry } = &self.handle;
        if entry.has_least_time() && self.entered.load(Ordering::Acquire) {
            return;
        }
        // A guard that enters is counted before it reads the entry. A lost entry stays as it was used.
        let others = |over| over || self.guards.load(Ordering::Acquire) > self.away.load(Ordering::Acquire);
        entry.take_back(client.clock.now(), others);
        client.schedule.track(entry);
    }
}

impl Guard {
    pub(crate) fn new(handle: Handle, slot: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let (guards, away, entered) = (AtomicUsize::new(1), AtomicUsize::new(0), AtomicBool::new(false));
        let hold = Arc::new(Hold { handle, guards, away, entered, _slot: slot });
        Self { hold, out: false, away: AtomicBool::default() }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.hold.handle.client
    }

    /// On its way to a caller on another runtime: until that has it, or another one has a guard, it is not renewed.
    pub(crate) fn sent(&self) {
        self.away.store(true, Ordering::Release);
        self.hold.away.fetch_add(1, Ordering::AcqRel);
        self.hold.left_to_those_away();
    }

    /// The caller has it, unless it was lost on its way.
    pub(crate) fn arrived(&self) {
        self.end_of_way();
        self.received();
    }

    fn end_of_way(&self) {
        if self.away.swap(false, Ordering::AcqRel) {
            self.hold.away.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn received(&self) {
        self.entry().receive(self.client().clock.now());
        self.client().schedule.track(&self.handle().entry);
    }

    /// Lets nobody enter any more; false where somebody has.
    pub(crate) fn shut(&self) -> bool {
        self.hold.guards.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives the lock back at once, whatever its least time: nothing was done under this guard. Where there are or were others, as
    /// an owner's, it only steps out.
    pub(crate) fn give_back_unused(self) {
        if self.shut() && !self.hold.entered.load(Ordering::Acquire) {
            self.entry().waive_least_time();
        }
    }

    /// Ends the hold on this client and leaves the entry in the store; one that was lost before is given back.
    pub(crate) fn end_without_release(&self, reason: LossReason) -> Result<Ticket> {
        let Handle { client, entry } = self.handle();
        let now = client.clock.now();
        let ended = entry.end_for_release(now, reason);
        client.settle(entry, now);
        match ended {
            Ok(Some(ticket)) => Ok(ticket),
            Ok(None) => Err(self.lost_error(LossReason::NotHeld)),
            // The guard's end gives it back.
            Err(reason) => Err(self.lost_error(reason)),
        }
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.hold.handle.entry
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.hold.handle
    }

    pub(super) fn held(&self) -> Result<Timestamp, LossReason> {
        match self.hold.view() {
            View::Held { deadline } => Ok(deadline),
            View::Over(reason) => Err(reason),
            View::Waiting { .. } => Err(LossReason::NotHeld),
        }
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        lost(self.name(), reason, self.handle().entry.failure())
    }

    /// Gives the lock back for all guards of this acquisition.
    pub(crate) async fn give_back(&self) -> Result<()> {
        let Handle { client, entry } = self.handle();
        // Before the entry is seen as over, so that `close` waits for it.
        let pending = client.background.begin();
        let ticket = self.end_without_release(LossReason::Released)?;
        let (releasing, lease, stay) = (Arc::clone(client), entry.store_lease(), entry.stays_until());
        let call = Box::pin(give_back::release(releasing, ticket, lease, stay, false));
        let answer = if client.is_home() {
            // Dropped half way it is counted by the background before it is no longer counted here.
            let answer = client.here(pin!(CancelSafe::new(client, call, |_, _| ()))).await;
            drop(pending);
            answer
        } else {
            let counted = async move {
                let answer = call.await;
                drop(pending);
                answer
            };
            client.finish(counted).await
        };
        match answer {
            Ok(Release::Released) => Ok(()),
            Ok(Release::NotHeld) => Err(self.lost_error(LossReason::NotHeld)),
            Err(error) => Err(error.during("release").at(&client.info.address)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end_of_way();
        if !self.out {
            // None are left where it was shut.
            let _ = self.hold.guards.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        }
        let left = self.hold.guards.load(Ordering::Acquire);
        if left > 0 && left == self.hold.away.load(Ordering::Acquire) {
            self.hold.left_to_those_away();
        }
        // The last one to let go of the hold drops the handle, which gives the lock back.
    }
}

/// The error of everything that needs a lock that is gone.
fn lost(name: &LockName, reason: LossReason, cause: Option<Error>) -> Error {
    let text = format!("`{name}` is not held any more: {reason}");
    let error = Error::new(ErrorKind::Lost, text).lost_by(reason);
    cause.into_iter().fold(error, Error::caused_by)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::around::testing;
    use crate::client::Locks;

    /// Longer than a grant stays that nobody has received.
    const LONG: Duration = Duration::from_secs(60);

    async fn held_for_long() -> (Locks, Guard) {
        let locks = testing::paused().unwrap();
        let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
        tokio::time::sleep(LONG).await;
        (locks, guard)
    }

    #[tokio::test(start_paused = true)]
    async fn who_enters_from_elsewhere_while_the_last_other_goes_has_the_lock() {
        let (_locks, outer) = held_for_long().await;
        let inner = outer.reenter().unwrap();
        drop(outer);
        inner.sent();
        tokio::time::sleep(Duration::from_secs(1)).await;
        inner.arrived();
        tokio::time::sleep(LONG).await;
        assert_eq!(inner.loss(), None);
    }

    /// Work has run under it, wherever its last guard is: it stays for its least time, and for its lock-delay when it is lost.
    #[tokio::test(start_paused = true)]
    async fn what_was_used_stays_whoever_is_on_the_way_at_its_end() {
        for (lost, in_time) in [(false, true), (false, false), (true, true)] {
            let locks = testing::paused().unwrap();
            let lock = locks.mutex("n").unwrap().ttl(LONG / 6).unwrap();
            let lock =
                if lost { lock.lock_delay(LONG).unwrap().max_hold(LONG / 6) } else { lock.at_least(LONG) };
            let outer = lock.unwrap().acquire().await.unwrap();
            let inner = outer.reenter().unwrap();
            if in_time {
                inner.sent();
            }
            tokio::time::sleep(LONG / 3).await;
            assert_eq!(outer.loss().is_some(), lost);
            drop(outer);
            if !in_time {
                inner.sent();
            }
            tokio::time::sleep(LONG / 6).await;
            drop(inner);
            tokio::time::sleep(LONG / 12).await;
            assert!(testing::hold_elsewhere(&locks, "n").await.is_err(), "free early: {lost}, {in_time}");
            tokio::time::sleep(LONG).await;
            drop(testing::hold_elsewhere(&locks, "n").await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_on_its_way_when_the_others_go_blocks_nobody() {
        for released in [false, true] {
            let (locks, outer) = held_for_long().await;
            let left = outer.reenter().unwrap();
            left.sent();
            tokio::time::sleep(LONG).await;
            assert!(outer.is_held(), "the other has it");
            if released {
                outer.release().await.unwrap()
            } else {
                drop(outer)
            }
            tokio::time::sleep(LONG).await;
            testing::hold_elsewhere(&locks, "n").await.expect("blocked for good").release().await.unwrap();
            left.arrived();
            assert!(!left.is_held());
        }
    }
}
