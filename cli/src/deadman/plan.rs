//! When the group is to be ended: pure arithmetic on deadlines.
//!
//! TERM comes `min(grace, ttl / 3)` before the deadline, KILL at the deadline at the latest. Renewals come every third
//! of the lease, so a healthy lock never gets near. Inside another run KILL also comes by that run's deadline, whose
//! deadman sends the TERM.

use std::time::Duration;

use onelock::Timestamp;

/// The deadline of the moment and what follows from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    deadline: Timestamp,
    lead: Duration,
    grace: Duration,
    /// When KILL is due; once ending, nothing takes it back.
    kill: Option<Timestamp>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing before this moment.
    Wait(Timestamp),
    /// Begin to end the group: TERM.
    Term,
    /// Leave nothing alive: KILL, as often as this is asked.
    Kill,
}

impl Plan {
    pub(crate) fn new(deadline: Timestamp, ttl: Duration, grace: Duration) -> Self {
        Self { deadline, lead: lead(ttl, grace), grace, kill: None }
    }

    /// The lease was renewed.
    pub(crate) fn renewed(&mut self, deadline: Timestamp) {
        self.deadline = deadline;
    }

    /// Ends the group now. When KILL is due, if that is news: then TERM is due now.
    pub(crate) fn end(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.kill.is_some() {
            return None;
        }
        self.kill = Some((now + self.grace).min(self.deadline));
        self.kill
    }

    /// Ends the group without a grace.
    pub(crate) fn kill(&mut self, now: Timestamp) {
        self.kill = Some(self.kill.map_or(now, |kill| kill.min(now)));
    }

    /// What is due at `now`, with the deadline of the runs around this one.
    pub(crate) fn step(&self, now: Timestamp, outer: Option<Timestamp>) -> Step {
        let kill = self.kill.into_iter().chain(outer).min();
        let term = self.deadline - self.lead;
        match (kill, self.kill) {
            (Some(kill), _) if now >= kill => Step::Kill,
            (_, None) if now >= term => Step::Term,
            (Some(kill), Some(_)) => Step::Wait(kill),
            (kill, _) => Step::Wait(kill.map_or(term, |kill| kill.min(term))),
        }
    }
}

/// How long before the deadline TERM comes.
pub(crate) fn lead(ttl: Duration, grace: Duration) -> Duration {
    grace.min(ttl / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_secs(seconds))
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn term_leaves_the_grace_before_the_deadline() {
        let mut plan = Plan::new(at(100), s(30), s(5));
        assert_eq!(plan.step(at(94), None), Step::Wait(at(95)));
        assert_eq!(plan.step(at(95), None), Step::Term);
        assert!(plan.end(at(95)).is_some());
        assert_eq!(plan.step(at(99), None), Step::Wait(at(100)));
        assert_eq!(plan.step(at(100), None), Step::Kill);
    }

    #[test]
    fn a_long_grace_is_capped_by_a_third_of_the_lease() {
        let plan = Plan::new(at(100), s(30), s(3_600));
        assert_eq!(plan.step(at(89), None), Step::Wait(at(90)));
        assert_eq!(plan.step(at(90), None), Step::Term);
    }

    #[test]
    fn a_renewal_moves_it_and_the_end_does_not_move() {
        let mut plan = Plan::new(at(100), s(30), s(5));
        plan.renewed(at(110));
        assert_eq!(plan.step(at(100), None), Step::Wait(at(105)));
        assert!(plan.end(at(102)).is_some());
        assert_eq!(plan.end(at(103)), None);
        plan.renewed(at(200));
        assert_eq!(plan.step(at(106), None), Step::Wait(at(107)));
        assert_eq!(plan.step(at(107), None), Step::Kill);
    }

    #[test]
    fn an_end_after_the_deadline_kills_at_once() {
        let mut plan = Plan::new(at(100), s(30), s(5));
        assert!(plan.end(at(101)).is_some());
        assert_eq!(plan.step(at(101), None), Step::Kill);
        let mut none = Plan::new(at(100), s(30), s(0));
        assert_eq!(none.step(at(99), None), Step::Wait(at(100)));
        assert!(none.end(at(50)).is_some());
        assert_eq!(none.step(at(50), None), Step::Kill);
    }

    #[test]
    fn an_outer_deadline_shortens_every_grace() {
        let mut plan = Plan::new(at(100), s(30), s(20));
        assert_eq!(plan.step(at(50), Some(at(60))), Step::Wait(at(60)));
        assert_eq!(plan.step(at(60), Some(at(60))), Step::Kill);
        assert_eq!(plan.step(at(60), Some(at(200))), Step::Wait(at(90)));
        assert_eq!(plan.end(at(60)), Some(at(80)));
        assert_eq!(plan.step(at(61), Some(at(70))), Step::Wait(at(70)));
        assert_eq!(plan.step(at(70), Some(at(70))), Step::Kill);
        assert_eq!(plan.step(at(70), Some(at(90))), Step::Wait(at(80)));
    }
}
