//! When the group is to be ended: pure arithmetic on deadlines.
//!
//! TERM comes `min(grace, ttl / 3)` before the deadline, KILL at the deadline at the latest. Renewals come every third
//! of the lease, so a healthy lock never gets near.

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
        Self { deadline, lead: grace.min(ttl / 3), grace, kill: None }
    }

    /// The lease was renewed.
    pub(crate) fn renewed(&mut self, deadline: Timestamp) {
        self.deadline = deadline;
    }

    /// Ends the group now. Says whether that is news: then TERM is due.
    pub(crate) fn end(&mut self, now: Timestamp) -> bool {
        if self.kill.is_some() {
            return false;
        }
        self.kill = Some((now + self.grace).min(self.deadline));
        true
    }

    /// What is due at `now`.
    pub(crate) fn step(&self, now: Timestamp) -> Step {
        match self.kill {
            Some(kill) if now >= kill => Step::Kill,
            Some(kill) => Step::Wait(kill),
            None if now >= self.deadline - self.lead => Step::Term,
            None => Step::Wait(self.deadline - self.lead),
        }
    }
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
        assert_eq!(plan.step(at(94)), Step::Wait(at(95)));
        assert_eq!(plan.step(at(95)), Step::Term);
        assert!(plan.end(at(95)));
        assert_eq!(plan.step(at(99)), Step::Wait(at(100)));
        assert_eq!(plan.step(at(100)), Step::Kill);
    }

    #[test]
    fn a_long_grace_is_capped_by_a_third_of_the_lease() {
        let plan = Plan::new(at(100), s(30), s(3_600));
        assert_eq!(plan.step(at(89)), Step::Wait(at(90)));
        assert_eq!(plan.step(at(90)), Step::Term);
    }

    #[test]
    fn a_renewal_moves_it_and_the_end_does_not_move() {
        let mut plan = Plan::new(at(100), s(30), s(5));
        plan.renewed(at(110));
        assert_eq!(plan.step(at(100)), Step::Wait(at(105)));
        assert!(plan.end(at(102)));
        assert!(!plan.end(at(103)));
        plan.renewed(at(200));
        assert_eq!(plan.step(at(106)), Step::Wait(at(107)));
        assert_eq!(plan.step(at(107)), Step::Kill);
    }

    #[test]
    fn an_end_after_the_deadline_kills_at_once() {
        let mut plan = Plan::new(at(100), s(30), s(5));
        assert!(plan.end(at(101)));
        assert_eq!(plan.step(at(101)), Step::Kill);
        let mut none = Plan::new(at(100), s(30), s(0));
        assert_eq!(none.step(at(99)), Step::Wait(at(100)));
        assert!(none.end(at(50)));
        assert_eq!(none.step(at(50)), Step::Kill);
    }
}
