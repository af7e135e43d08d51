//! One acquisition's state on the client: what the store last said, until when it may be believed, why it ended.
//!
//! No I/O and no time of its own: every step is given the moment it happens at. That keeps the races between renewal,
//! release, drop and loss in one small place.

mod state;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::sync::{Mutex, Notify};
use crate::backend::{Renewal, Renewed, Request, Ticket};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::loss::LossReason;
use crate::token::{FencingToken, TokenEpoch};
use state::{Phase, State, number};

pub(crate) use state::{Upkeep, View};

/// Where the renewer has an entry: the moment of its next event, and a number that makes it unique.
pub(crate) type Key = (Timestamp, u64);

#[derive(Debug)]
pub(crate) struct Entry {
    /// As the entry joined; see [`Entry::numbered`].
    ticket: Ticket,
    epoch: TokenEpoch,
    upkeep: Upkeep,
    state: Mutex<State>,
    /// Notified at every change of the state.
    pub(crate) changed: Notify,
    /// How many wait for the end: as a rule the work that runs under it.
    watches: AtomicUsize,
    /// Where the renewer has it; written under the renewer's lock only.
    pub(crate) key: Mutex<Option<Key>>,
}

/// A waiter for the end of an entry.
pub(crate) struct Watch<'a>(&'a AtomicUsize);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Entry {
    /// An entry as the store answered a request that was sent at `sent`.
    ///
    /// # Errors
    /// When its number is of another epoch than the request's.
    pub(crate) fn new(
        request: &Request,
        upkeep: Upkeep,
        sent: Timestamp,
        now: Timestamp,
        answer: Renewed,
    ) -> Result<Self> {
        let mut state = State::joining(request, sent);
        state.learn(request.epoch, number(answer))?;
        state.apply(&upkeep, sent, now, answer);
        let ticket = request.ticket().token(number(answer));
        let (state, key) = (Mutex::new(state), Mutex::new(None));
        let (changed, watches) = (Notify::new(), AtomicUsize::new(0));
        Ok(Self { ticket, epoch: request.epoch, upkeep, state, changed, watches, key })
    }

    /// Its ticket; without a number if it joined without one.
    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The ticket with all that is known.
    fn numbered(&self, state: &State) -> Ticket {
        self.ticket.clone().token(state.number)
    }

    /// The token the user sees; every holder has one.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state.lock().number.map(|raw| self.epoch.shown(raw))
    }

    /// One step at `now`, given what the entry is by then. An end is notified, whether the clock or the step has made it.
    fn step<T>(&self, now: Timestamp, step: impl FnOnce(&mut State, View) -> T) -> T {
        let mut state = self.state.lock();
        let was_over = matches!(state.phase, Phase::Over(_));
        let view = state.view(now);
        let answer = step(&mut state, view);
        let ended = !was_over && matches!(state.phase, Phase::Over(_));
        // Under the lock, so that it is seen together with the end.
        state.learned |= ended && self.watches.load(Ordering::Acquire) > 0;
        drop(state);
        if ended {
            self.changed.notify_waiters();
        }
        answer
    }

    /// What it is at `now`. Once over it stays over: a passed deadline becomes loss here, as in every step.
    pub(crate) fn view(&self, now: Timestamp) -> View {
        self.step(now, |_, view| view)
    }

    pub(crate) fn granted(&self) -> Duration {
        self.state.lock().granted
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.as_ref().map(|(_, error)| error.clone())
    }

    /// A call for it has failed: until the store answers what is asked after `now`, it may have forgotten the entry.
    pub(crate) fn failed(&self, now: Timestamp, error: Error) {
        self.state.lock().failure = Some((now, error));
    }

    /// From when on less than `notice` is left, unless a renewal comes.
    pub(crate) fn risk(&self, notice: Duration) -> Timestamp {
        self.state.lock().risk(&self.upkeep, notice)
    }

    /// When the renewer must look at it next; `None` when it is over.
    pub(crate) fn next_event(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        match state.phase {
            Phase::Over(_) => None,
            _ if state.is_renewed(&self.upkeep) => Some(state.due.min(state.end())),
            _ => Some(state.end()),
        }
    }

    /// The renewal to send if one is due about `now`.
    pub(crate) fn due_renewal(&self, now: Timestamp) -> Option<Renewal> {
        let state = self.state.lock();
        let due = state.is_renewed(&self.upkeep) && state.due <= now + state.slack(&self.upkeep);
        drop(state);
        due.then(|| self.renewal(now))
    }

    /// How far ahead of its time a renewal may go to join a batch.
    pub(crate) fn slack(&self) -> Duration {
        self.state.lock().slack(&self.upkeep)
    }

    /// What to send when its renewal is due at `now`. Until the answer comes the next attempt is a third of the lease
    /// away, so a call that hangs is overtaken by another.
    pub(crate) fn renewal(&self, now: Timestamp) -> Renewal {
        let mut state = self.state.lock();
        state.due = now + state.pace(&self.upkeep) / 3;
        Renewal::new(self.numbered(&state), state.lease, state.waiter_lease)
    }

    /// A renewal for more time; the following ones ask for it too. The entry takes it when the store has given it.
    pub(crate) fn renewal_for(&self, lease: Duration) -> Renewal {
        let mut state = self.state.lock();
        state.longest = state.longest.max(lease);
        Renewal::new(self.numbered(&state), lease, state.waiter_lease)
    }

    pub(crate) fn set_lease(&self, lease: Duration) {
        self.state.lock().lease = lease;
    }

    /// Takes the store's answer to a renewal that was sent at `sent`.
    ///
    /// An answer that comes after the deadline changes nothing: what was lost stays lost.
    pub(crate) fn renewed(&self, sent: Timestamp, now: Timestamp, answer: &Result<Renewed>) {
        self.step(now, |state, view| {
            if matches!(view, View::Over(_)) {
                return;
            }
            let learned = answer.as_ref().map_err(Error::clone);
            match learned.and_then(|answer| state.learn(self.epoch, number(*answer)).map(|()| *answer)) {
                Ok(answer) => {
                    // Kept for an entry that is gone: after a failed call the store may have forgotten it.
                    if answer != Renewed::NotHeld {
                        state.failure.take_if(|(at, _)| *at <= sent);
                    }
                    state.apply(&self.upkeep, sent, now, answer);
                }
                Err(error) => {
                    let soon = (state.granted / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
                    state.due = state.due.min(now + soon);
                    state.failure = Some((now, error));
                }
            }
        });
        self.changed.notify_waiters();
    }

    /// Takes a pushed grant. It moves no deadline, so it counts only while the last renewal is still good; whether it
    /// did is the answer.
    pub(crate) fn pushed(&self, token: FencingToken, now: Timestamp) -> bool {
        self.step(now, |state, _| {
            // Of another epoch: the renewal that follows tells it.
            let _ = state.learn(self.epoch, Some(token));
            let ours = state.number == Some(token);
            let good = ours && state.phase == Phase::Waiting;
            if good {
                state.hold(&self.upkeep, now);
                // By its waiter's lease. It is not renewed at once: most holds are over before, and then it costs the store nothing.
                state.short = true;
                state.due = state.due.min(now + state.slack(&self.upkeep));
            }
            good
        })
    }

    /// Hands the hold to the caller; false when it does not hold at `now`. From here on it is renewed as a holder.
    pub(crate) fn receive(&self, now: Timestamp) -> bool {
        self.step(now, |state, view| {
            let held = matches!(view, View::Held { .. });
            state.received |= held;
            held
        })
    }

    /// No caller has the hold any more, unless `others` have it, which is called with whether it is over: until one receives it, it
    /// is not renewed.
    pub(crate) fn take_back(&self, now: Timestamp, others: impl FnOnce(bool) -> bool) {
        self.step(now, |state, view| {
            // In one step with the look at the others: one of them may receive it just now.
            if !others(matches!(view, View::Over(_))) {
                (state.received, state.idle_since) = (false, now);
            }
        });
    }

    /// Ends it on this client: by a drop or a close. What the clock has ended before stays lost.
    pub(crate) fn end(&self, now: Timestamp, reason: LossReason) {
        self.step(now, |state, view| {
            if !matches!(view, View::Over(_)) {
                state.phase = Phase::Over(reason);
            }
        });
    }

    /// Ends a hold by a release: what is owed, taken in the same step, so that nobody else gives it back. The reason
    /// when it was over before.
    pub(crate) fn end_for_release(
        &self,
        now: Timestamp,
        reason: LossReason,
    ) -> Result<Option<Ticket>, LossReason> {
        self.step(now, |state, view| match view {
            View::Over(reason) => Err(reason),
            View::Held { .. } | View::Waiting { .. } => {
                state.phase = Phase::Over(reason);
                Ok(std::mem::take(&mut state.owed).then(|| self.numbered(state)))
            }
        })
    }

    /// Whether a release has ended it: nothing is left to do.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Over(LossReason::Released) && !state.owed
    }

    /// Counts a waiter for the end, until dropped.
    pub(crate) fn watch(&self) -> Watch<'_> {
        self.watches.fetch_add(1, Ordering::AcqRel);
        Watch(&self.watches)
    }

    /// Whether somebody learns of its end, or has.
    pub(crate) fn is_watched(&self) -> bool {
        self.watches.load(Ordering::Acquire) > 0 || self.state.lock().learned
    }

    /// Whether it is lost and a guard still has it: it stays in the store, since work may still run under it.
    pub(crate) fn is_kept(&self) -> bool {
        let state = self.state.lock();
        matches!(state.phase, Phase::Over(_)) && state.received && state.owed
    }

    /// The entry to give back when its user is done; once only, and never when the store said it is gone. A hold that
    /// was lost under a lock-delay is left to its lease: the delay is for work that may still be running elsewhere.
    pub(crate) fn take_owed(&self) -> Option<Ticket> {
        let mut state = self.state.lock();
        let lost = matches!(
            state.phase,
            Phase::Over(LossReason::Expired | LossReason::MaxHold | LossReason::Closed)
        );
        let delayed = lost && state.received && !self.ticket.delay.is_zero();
        let ticket = (std::mem::take(&mut state.owed) && !delayed).then(|| self.numbered(&state));
        drop(state);
        self.changed.notify_waiters();
        ticket
    }

    /// It need not stay for its least time: nothing was done under it.
    pub(crate) fn waive_least_time(&self) {
        self.state.lock().waived = true;
    }

    pub(crate) fn has_least_time(&self) -> bool {
        self.upkeep.at_least.is_some()
    }

    /// The lease that renewals ask for.
    pub(crate) fn lease(&self) -> Duration {
        self.state.lock().lease
    }

    /// Whether it must be renewed before a caller has it: the least time counts from then on, whatever happens to this client.
    pub(crate) fn is_to_be_lengthened(&self) -> bool {
        let state = self.state.lock();
        self.upkeep.at_least.is_some() && state.phase == Phase::Held && state.short
    }

    /// Whether it was granted and no caller had it.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.held_since.is_some() && !state.received
    }

    /// Until when the entry must stay after its release, when a caller had it.
    pub(crate) fn stays_until(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        let least = self.upkeep.at_least.filter(|_| state.received && !state.waived)?;
        Some(state.held_since? + least)
    }

    /// Ends an entry that no caller has, for a client that closes; false for one that a caller has.
    pub(crate) fn end_unreceived(&self, now: Timestamp) -> bool {
        self.step(now, |state, view| {
            // In the same step: no caller receives it meanwhile.
            if !state.received && !matches!(view, View::Over(_)) {
                state.phase = Phase::Over(LossReason::Closed);
            }
            !state.received
        })
    }

    /// The entry to give back when it is over and no caller ever held it.
    pub(crate) fn take_unreceived(&self) -> Option<Ticket> {
        let mut state = self.state.lock();
        let unused = matches!(state.phase, Phase::Over(_)) && !state.received;
        (unused && std::mem::take(&mut state.owed)).then(|| self.numbered(&state))
    }

    /// How long the store may keep the entry from now on.
    pub(crate) fn store_lease(&self) -> Duration {
        self.state.lock().longest.saturating_add(self.ticket.delay)
    }
}
