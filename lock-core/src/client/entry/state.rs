//! What an entry's state is, and how the store's answers and the clock change it; [`super::Entry`] locks it and tells.

use std::time::Duration;

use crate::backend::{Renewed, Request};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::lease::Margin;
use crate::model::loss::LossReason;
use crate::token::{FencingToken, TokenEpoch};

/// The least time before the head of the line asks again, and between renewals, so that a lease about to end is not asked for in a
/// loop, nor one that a store gives too short.
const SOONEST: Duration = Duration::from_millis(2);

/// How an entry is kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upkeep {
    pub(crate) margin: Margin,
    /// What a holder asks for; where it has a longer least time, once a lease has covered that.
    pub(crate) lease: Duration,
    /// Whether a holder's lease is renewed.
    pub(crate) auto_renew: bool,
    pub(crate) max_hold: Option<Duration>,
    /// How long the entry stays at least, from when it held.
    pub(crate) at_least: Option<Duration>,
}

/// What an entry is at a given moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Waiting { ask_at: Option<Timestamp>, deadline: Timestamp },
    Held { deadline: Timestamp },
    Over(LossReason),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// In the store: known since it joined, or since it holds where the store's own queue is the line.
    pub(super) number: Option<FencingToken>,
    /// What to ask for at the next renewal.
    pub(super) lease: Duration,
    pub(super) waiter_lease: Duration,
    /// What the store gave last.
    pub(super) granted: Duration,
    /// The longest lease that was asked for or given: no later one shortens it in the store.
    pub(super) longest: Duration,
    /// Until when the last answer may be believed.
    pub(super) deadline: Timestamp,
    /// When this client learned that it holds; `None` until the store has granted it.
    pub(super) held_since: Option<Timestamp>,
    /// When the hold ends whatever the lease says.
    pub(super) hold_until: Option<Timestamp>,
    /// When to renew next.
    pub(super) due: Timestamp,
    /// A holder that has waited still has its waiter lease: one renewal makes it a holder's, unless it is released before.
    pub(super) short: bool,
    /// For the first waiter: when the lease ahead ends.
    pub(super) ask_at: Option<Timestamp>,
    /// A caller has the hold. Until then no work runs under it.
    pub(super) received: bool,
    /// Since when none has it.
    pub(super) idle_since: Timestamp,
    /// It need not stay for its least time.
    pub(super) waived: bool,
    /// Somebody waited for the end when it came: the work may be ending.
    pub(super) learned: bool,
    /// The entry may still be in the store.
    pub(super) owed: bool,
    pub(super) failure: Option<(Timestamp, Error)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Waiting,
    Held,
    Over(LossReason),
}

/// The number that an answer tells.
pub(super) fn number(answer: Renewed) -> Option<FencingToken> {
    match answer {
        Renewed::Held(grant) => Some(grant.token),
        Renewed::Waiting(place) => place.token,
        Renewed::NotHeld => None,
    }
}

impl State {
    /// Of an entry that was asked for at `sent`, before the answer.
    pub(super) fn joining(request: &Request, sent: Timestamp) -> Self {
        Self {
            lease: request.lease,
            waiter_lease: request.waiter_lease,
            longest: request.lease,
            deadline: sent,
            due: sent,
            idle_since: sent,
            owed: true,
            ..Self::default()
        }
    }

    /// Takes the number, if the answer tells one and none is known yet.
    pub(super) fn learn(&mut self, epoch: TokenEpoch, number: Option<FencingToken>) -> Result<()> {
        if let (Some(raw), None) = (number, self.number) {
            epoch.seal(raw)?;
            self.number = Some(raw);
        }
        Ok(())
    }

    /// When the entry ends unless something happens. A grant that no caller has received ends with the waiter's lease,
    /// so that a caller that stopped polling does not block the line.
    pub(super) fn end(&self) -> Timestamp {
        let end = self.hold_until.map_or(self.deadline, |until| until.min(self.deadline));
        if self.phase == Phase::Held && !self.received {
            return end.min(self.idle_since + self.waiter_lease);
        }
        end
    }

    /// Whether the renewer asks for more time.
    pub(super) fn is_renewed(&self, upkeep: &Upkeep) -> bool {
        match self.phase {
            Phase::Waiting => true,
            Phase::Held => self.received && (upkeep.auto_renew || self.short),
            Phase::Over(_) => false,
        }
    }

    /// From when on less than `notice` is left. A renewed lease is down to two thirds before each renewal, and a holder that has
    /// waited begins with its waiter's lease: so of a lease that is renewed at most the last half counts.
    pub(super) fn risk(&self, upkeep: &Upkeep, notice: Duration) -> Timestamp {
        let renewed = self.is_renewed(upkeep);
        let of_lease = self.deadline - if renewed { notice.min(self.granted / 2) } else { notice };
        self.hold_until.map_or(of_lease, |until| of_lease.min(until - notice))
    }

    /// How far a renewal may be from its time: ahead of it to join a batch, and behind a push.
    pub(super) fn slack(&self, upkeep: &Upkeep) -> Duration {
        self.pace(upkeep) / 24
    }

    /// The lease that renewals are timed by. A first lease that covers a least time is no reason to learn of an eviction late.
    pub(super) fn pace(&self, upkeep: &Upkeep) -> Duration {
        upkeep.at_least.map_or(self.granted, |_| self.granted.min(upkeep.lease)).max(3 * SOONEST)
    }

    pub(super) fn view(&mut self, now: Timestamp) -> View {
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

    pub(super) fn hold(&mut self, upkeep: &Upkeep, now: Timestamp) {
        self.phase = Phase::Held;
        (self.held_since, self.idle_since) = (Some(now), now);
        self.hold_until = upkeep.max_hold.map(|hold| now + hold);
    }

    pub(super) fn apply(&mut self, upkeep: &Upkeep, sent: Timestamp, now: Timestamp, answer: Renewed) {
        let another = |raw| self.number.is_some_and(|own| own != raw);
        if number(answer).is_some_and(another) {
            // Made by a late request of this holder: the entry that was ours is gone, and others may have held since.
            self.phase = Phase::Over(LossReason::NotHeld);
            return;
        }
        let lease = match answer {
            Renewed::Held(grant) => {
                let first = self.phase == Phase::Waiting || self.short;
                if self.phase == Phase::Waiting {
                    self.hold(upkeep, now);
                }
                self.short = false;
                // Only once: what an extension asks for later stays.
                if first && upkeep.at_least.is_some() {
                    self.lease = upkeep.lease;
                }
                grant.lease
            }
            // Sent by the waiter and overtaken by the push: it says nothing of the hold, and the lease it got is good.
            Renewed::Waiting(place) if self.phase == Phase::Held && Some(sent) <= self.held_since => {
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
        self.longest = self.longest.max(lease);
        // Answers may overtake each other; none takes back what another gave.
        self.deadline = self.deadline.max(upkeep.margin.deadline(sent, lease));
        let third = self.pace(upkeep) / 3;
        self.due = sent + third;
        if self.due <= now {
            // The answer was slow. Renewals that are sent one by one, as the answers to many joins come, keep the store slow: while
            // there is time they wait for a batch.
            self.due = self.due.max((now + self.slack(upkeep)).min(self.deadline - third));
        }
    }
}
