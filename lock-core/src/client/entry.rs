//! One acquisition's state on the client: what the store last said, until when it may be believed, why it ended.
//!
//! No I/O and no time of its own: every step is given the moment it happens at. That keeps the races between renewal,
//! release, drop and loss in one small place.

use std::time::Duration;

use super::renewer::Key;
use super::sync::{Mutex, Notify};
use crate::backend::{Renewal, Renewed, Request, Ticket};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::lease::Margin;
use crate::mode::Mode;
use crate::token::{FencingToken, TokenEpoch};

use super::guard::LossReason;

/// The least time before the head of the line asks again, so that a lease about to end is not asked for in a loop.
const SOONEST: Duration = Duration::from_millis(2);

/// How an entry is kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upkeep {
    pub(crate) margin: Margin,
    /// Whether a holder's lease is renewed.
    pub(crate) auto_renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<AtLeast>,
}

/// How long the entry stays at least, from when it held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtLeast {
    pub(crate) stay: Duration,
    /// What is asked for once a lease has covered that time.
    pub(crate) ttl: Duration,
}

#[derive(Debug)]
pub(crate) struct Entry {
    /// As the entry joined; see [`Entry::numbered`].
    ticket: Ticket,
    epoch: TokenEpoch,
    upkeep: Upkeep,
    state: Mutex<State>,
    /// Notified at every change of the state.
    pub(crate) changed: Notify,
    /// Where the renewer has it; written under the renewer's lock only.
    pub(crate) key: Mutex<Option<Key>>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    number: Option<Number>,
    /// What to ask for at the next renewal.
    lease: Duration,
    waiter_lease: Duration,
    /// What the store gave last.
    granted: Duration,
    /// Until when the last answer may be believed.
    deadline: Timestamp,
    /// When this client learned that it holds.
    held_since: Timestamp,
    /// When the hold ends whatever the lease says.
    hold_until: Option<Timestamp>,
    /// When to renew next.
    due: Timestamp,
    /// A holder that has waited still has its waiter lease: one renewal makes it a holder's, unless it is released before.
    short: bool,
    /// For the first waiter: when the lease ahead ends.
    ask_at: Option<Timestamp>,
    /// The store has granted it.
    granted_once: bool,
    /// A caller has the hold. Until then no work runs under it.
    received: bool,
    /// The entry may still be in the store.
    owed: bool,
    failure: Option<Error>,
}

/// The entry's number: known since it joined, or since it holds where the store's own queue is the line.
#[derive(Clone, Copy, Debug)]
struct Number {
    raw: FencingToken,
    /// The token the user sees.
    sealed: FencingToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Held,
    Over(LossReason),
}

/// What an entry is at a given moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Waiting { ask_at: Option<Timestamp>, deadline: Timestamp },
    Held { deadline: Timestamp },
    Over(LossReason),
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
        let mut state = State {
            phase: Phase::Waiting,
            number: None,
            lease: request.lease,
            waiter_lease: request.waiter_lease,
            granted: Duration::ZERO,
            deadline: sent,
            held_since: sent,
            hold_until: None,
            due: sent,
            short: false,
            ask_at: None,
            granted_once: false,
            received: false,
            owed: true,
            failure: None,
        };
        state.learn(request.epoch, number(answer))?;
        state.apply(&upkeep, sent, now, answer);
        let ticket = request.ticket().token(number(answer));
        let (state, key) = (Mutex::new(state), Mutex::new(None));
        Ok(Self { ticket, epoch: request.epoch, upkeep, state, changed: Notify::new(), key })
    }

    /// Its ticket; without a number if it joined without one.
    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The ticket with all that is known.
    fn numbered(&self, state: &State) -> Ticket {
        self.ticket.clone().token(state.number.map(|number| number.raw))
    }

    pub(crate) fn mode(&self) -> Mode {
        self.ticket.mode
    }

    /// The token the user sees; every holder has one.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state.lock().number.map(|number| number.sealed)
    }

    /// What it is at `now`. Once over it stays over: this is where a passed deadline becomes loss.
    pub(crate) fn view(&self, now: Timestamp) -> View {
        let mut state = self.state.lock();
        let was = state.phase;
        let view = state.view(now);
        drop(state);
        if matches!(view, View::Over(_)) && !matches!(was, Phase::Over(_)) {
            self.changed.notify_waiters();
        }
        view
    }

    pub(crate) fn granted(&self) -> Duration {
        self.state.lock().granted
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
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
        state.due = now + (state.pace(&self.upkeep) / 3).max(Duration::from_millis(1));
        Renewal::new(self.numbered(&state), state.lease, state.waiter_lease)
    }

    /// A renewal for more time; the following ones ask for it too. The entry takes it when the store has given it.
    pub(crate) fn renewal_for(&self, lease: Duration) -> Renewal {
        let state = self.state.lock();
        Renewal::new(self.numbered(&state), lease, state.waiter_lease)
    }

    pub(crate) fn set_lease(&self, lease: Duration) {
        self.state.lock().lease = lease;
    }

    /// Takes the store's answer to a renewal that was sent at `sent`.
    ///
    /// An answer that comes after the deadline changes nothing: what was lost stays lost.
    pub(crate) fn renewed(&self, sent: Timestamp, now: Timestamp, answer: &Result<Renewed>) {
        let mut state = self.state.lock();
        if matches!(state.view(now), View::Over(_)) {
            // Notified below: the deadline may have passed just now.
        } else {
            let learned = answer.as_ref().map_err(Error::clone);
            match learned.and_then(|answer| state.learn(self.epoch, number(*answer)).map(|()| *answer)) {
                Ok(answer) => {
                    // Kept for an entry that is gone: after a failed call the store may have forgotten it.
                    if answer != Renewed::NotHeld {
                        state.failure = None;
                    }
                    state.apply(&self.upkeep, sent, now, answer);
                }
                Err(error) => {
                    let soon = (state.granted / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
                    state.due = state.due.min(now + soon);
                    state.failure = Some(error);
                }
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Takes a pushed grant. It moves no deadline, so it counts only while the last renewal is still good; whether it
    /// did is the answer.
    pub(crate) fn pushed(&self, token: FencingToken, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        let was = state.phase;
        if let Err(error) = state.learn(self.epoch, Some(token)) {
            state.failure = Some(error);
        }
        let ours = state.number.is_some_and(|number| number.raw == token);
        let good = ours && matches!(state.view(now), View::Waiting { .. });
        if good {
            state.hold(&self.upkeep, now);
            state.lengthen(&self.upkeep, now);
        }
        let (is, held) = (state.phase, ours && state.phase == Phase::Held);
        drop(state);
        if is != was && matches!(is, Phase::Over(_)) {
            // The deadline has passed just now.
            self.changed.notify_waiters();
        }
        good || held
    }

    /// Hands the hold to the caller; false when it does not hold at `now`. From here on it is renewed as a holder.
    pub(crate) fn receive(&self, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        let held = matches!(state.view(now), View::Held { .. });
        state.received |= held;
        held
    }

    /// Ends it on this client: by a drop or a close. What the clock has ended before stays lost.
    pub(crate) fn end(&self, now: Timestamp, reason: LossReason) {
        let mut state = self.state.lock();
        if !matches!(state.view(now), View::Over(_)) {
            state.phase = Phase::Over(reason);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends a hold by a release: what is owed, taken in the same step, so that nobody else gives it back. The reason
    /// when it was over before.
    pub(crate) fn end_for_release(
        &self,
        now: Timestamp,
        reason: LossReason,
    ) -> Result<Option<Ticket>, LossReason> {
        let mut state = self.state.lock();
        let ended = match state.view(now) {
            View::Over(reason) => Err(reason),
            View::Held { .. } | View::Waiting { .. } => {
                state.phase = Phase::Over(reason);
                Ok(std::mem::take(&mut state.owed).then(|| self.numbered(&state)))
            }
        };
        drop(state);
        self.changed.notify_waiters();
        ended
    }

    /// Whether a release has ended it: nothing is left to do.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Over(LossReason::Released) && !state.owed
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
        (std::mem::take(&mut state.owed) && !delayed).then(|| self.numbered(&state))
    }

    /// Whether it was granted and no caller had it.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.granted_once && !state.received
    }

    /// Until when the entry must stay after its release, when a caller had it.
    pub(crate) fn stays_until(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        self.upkeep.at_least.filter(|_| state.received).map(|least| state.held_since + least.stay)
    }

    /// Ends an entry that no caller has, for a client that closes; false for one that a caller has.
    pub(crate) fn end_unreceived(&self, now: Timestamp) -> bool {
        let unused = !self.state.lock().received;
        if unused {
            self.end(now, LossReason::Closed);
        }
        unused
    }

    /// The entry to give back when it is over and no caller ever held it.
    pub(crate) fn take_unreceived(&self) -> Option<Ticket> {
        let mut state = self.state.lock();
        let unused = matches!(state.phase, Phase::Over(_)) && !state.received;
        (unused && std::mem::take(&mut state.owed)).then(|| self.numbered(&state))
    }

    /// How long the store may keep the entry from now on.
    pub(crate) fn store_lease(&self) -> Duration {
        let state = self.state.lock();
        state.granted.max(state.lease) + self.ticket.delay
    }
}

/// The number that an answer tells.
fn number(answer: Renewed) -> Option<FencingToken> {
    match answer {
        Renewed::Held(grant) => Some(grant.token),
        Renewed::Waiting(place) => place.token,
        Renewed::NotHeld => None,
    }
}

impl State {
    /// Takes the number, if the answer tells one and none is known yet.
    fn learn(&mut self, epoch: TokenEpoch, number: Option<FencingToken>) -> Result<()> {
        if let (Some(raw), None) = (number, self.number) {
            self.number = Some(Number { raw, sealed: epoch.seal(raw)? });
        }
        Ok(())
    }

    /// When the entry ends unless something happens. A grant that no caller has received ends with the waiter's lease,
    /// so that a caller that stopped polling does not block the line.
    fn end(&self) -> Timestamp {
        let end = self.hold_until.map_or(self.deadline, |until| until.min(self.deadline));
        if self.phase == Phase::Held && !self.received {
            return end.min(self.held_since + self.waiter_lease);
        }
        end
    }

    /// Whether the renewer asks for more time.
    fn is_renewed(&self, upkeep: &Upkeep) -> bool {
        match self.phase {
            Phase::Waiting => true,
            Phase::Held => self.received && (upkeep.auto_renew || self.short),
            Phase::Over(_) => false,
        }
    }

    /// How far a renewal may be from its time: ahead of it to join a batch, and behind a push.
    fn slack(&self, upkeep: &Upkeep) -> Duration {
        self.pace(upkeep) / 24
    }

    /// The lease that renewals are timed by. A first lease that covers a least time is no reason to learn of an eviction late.
    fn pace(&self, upkeep: &Upkeep) -> Duration {
        upkeep.at_least.map_or(self.granted, |least| self.granted.min(least.ttl))
    }

    fn view(&mut self, now: Timestamp) -> View {
        if !matches!(self.phase, Phase::Over(_)) && now >= self.end() {
            let capped = self.hold_until.is_some_and(|until| now >= until);
            self.phase = Phase::Over(if capped { LossReason::MaxHold } else { LossReason::Expired });
        }
        match self.phase {
            Phase::Waiting => View::Waiting { ask_at: self.ask_at, deadline: self.deadline },
            Phase::Held => View::Held { deadline: self.end() },
            Phase::Over(reason) => View::Over(reason),
        }
    }

    fn hold(&mut self, upkeep: &Upkeep, now: Timestamp) {
        self.phase = Phase::Held;
        self.ask_at = None;
        self.held_since = now;
        self.granted_once = true;
        self.hold_until = upkeep.max_hold.map(|hold| now + hold);
    }

    /// It holds by its waiter's lease.
    fn lengthen(&mut self, upkeep: &Upkeep, now: Timestamp) {
        self.short = true;
        // Not at once: most holds are over before, and then it costs the store nothing.
        self.due = self.due.min(now + self.slack(upkeep));
    }

    fn apply(&mut self, upkeep: &Upkeep, sent: Timestamp, now: Timestamp, answer: Renewed) {
        let lease = match answer {
            Renewed::Held(grant) => {
                if self.phase == Phase::Waiting {
                    self.hold(upkeep, now);
                }
                self.short = false;
                if let Some(least) = upkeep.at_least.filter(|least| grant.lease >= least.stay) {
                    self.lease = least.ttl;
                }
                grant.lease
            }
            // Sent by the waiter and overtaken by the push: it says nothing of the hold, and the lease it got is good.
            Renewed::Waiting(place) if self.phase == Phase::Held && sent <= self.held_since => {
                self.deadline = self.deadline.max(upkeep.margin.deadline(sent, place.lease));
                return;
            }
            // A holder never goes back to waiting: the store does not know this hold.
            Renewed::Waiting(_) if self.phase == Phase::Held => {
                self.phase = Phase::Over(LossReason::NotHeld);
                return;
            }
            Renewed::Waiting(place) => {
                self.ask_at = place.retry_after.map(|after| now + after.max(SOONEST));
                place.lease
            }
            Renewed::NotHeld => {
                self.phase = Phase::Over(LossReason::NotHeld);
                self.owed = false;
                return;
            }
        };
        self.granted = lease;
        // Answers may overtake each other; none takes back what another gave.
        self.deadline = self.deadline.max(upkeep.margin.deadline(sent, lease));
        self.due = sent + self.pace(upkeep) / 3;
    }
}
