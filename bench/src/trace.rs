//! What happened to one name among several contenders, and what follows from it: who overtook whom, whether the shares are
//! fair, how fast the lock moves on.
//!
//! # Inversions
//! A grant is an *inversion* when it went to a request although an older one was still waiting that the server must
//! have known by then. When a client calls is not when its request arrives, so calls that are close together have no
//! order. Request A counts as *arrived* once, after its call, two releases have been asked for and answered, one after
//! the other: the server has worked off two later requests of other clients from beginning to end. Request B overtook A
//! if it was called after A had arrived and was granted before A. The figure is the number of grants that overtook
//! anybody, per thousand grants. So it says nothing about requests that are nearly simultaneous, and a lock that is
//! never released leaves no inversions. Where there is no server to arrive at, as with SQLite, a request can lose the
//! race for the file again and again before it stands in any line: that counts, too.

use std::time::Duration;

use onelock::Timestamp;
use serde::{Deserialize, Serialize};

/// One turn of a contender: it asked, was granted, gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Whose.
    pub contender: usize,
    /// When it asked.
    pub asked: Timestamp,
    /// When it knew that it held.
    pub granted: Timestamp,
    /// When it began to give back.
    pub leaving: Timestamp,
    /// When that was answered.
    pub left: Timestamp,
}

/// The turns of a name, by the time they were granted, and the part of them that counts.
#[derive(Debug, Clone)]
pub struct Trace {
    turns: Vec<Turn>,
    contenders: usize,
    from: Timestamp,
    until: Timestamp,
}

impl Trace {
    /// The turns of so many contenders. What was granted before `from` or after `until` is only looked at for what it
    /// says about the rest.
    #[must_use]
    pub fn new(mut turns: Vec<Turn>, contenders: usize, from: Timestamp, until: Timestamp) -> Self {
        turns.sort_by_key(|turn| turn.granted);
        Self { turns, contenders, from, until }
    }

    fn counts(&self, turn: &Turn) -> bool {
        (self.from..=self.until).contains(&turn.granted)
    }

    /// The turns that count.
    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(|turn| self.counts(turn))
    }

    fn seconds(&self) -> f64 {
        self.until.saturating_since(self.from).as_secs_f64()
    }

    /// Grants per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.turns().count() as f64 / self.seconds()
    }

    /// Each grant that went to another contender than the one before it, with the turn before it.
    pub fn changes(&self) -> impl Iterator<Item = (&Turn, &Turn)> {
        let pairs = self.turns.iter().zip(self.turns.iter().skip(1));
        pairs.filter(|(before, after)| before.contender != after.contender && self.counts(after))
    }

    /// Grants per second that went to another contender than the one before.
    #[must_use]
    pub fn changes_per_second(&self) -> f64 {
        self.changes().count() as f64 / self.seconds()
    }

    /// How often an exclusive lock was granted while another contender still thought that it held it.
    #[must_use]
    pub fn overlaps(&self) -> usize {
        // The one before may be short; any before it may still hold.
        let mut held_until: Option<Turn> = None;
        let mut count = 0;
        for turn in &self.turns {
            if held_until
                .is_some_and(|other| other.contender != turn.contender && turn.granted < other.leaving)
            {
                count += 1;
            }
            if held_until.is_none_or(|other| other.leaving < turn.leaving) {
                held_until = Some(*turn);
            }
        }
        count
    }

    /// The share of the time in which an exclusive lock was held by somebody who knew it.
    #[must_use]
    pub fn in_use(&self) -> f64 {
        let held = |turn: &Turn| turn.leaving.min(self.until).saturating_since(turn.granted.max(self.from));
        self.turns.iter().map(held).sum::<Duration>().as_secs_f64() / self.seconds()
    }

    /// Jain's index of how many turns each contender had: 1 when all had as many, one in the number of contenders when
    /// one had them all. `None` when nobody had any.
    #[must_use]
    pub fn jain(&self) -> Option<f64> {
        let mut shares = vec![0.0_f64; self.contenders];
        for turn in self.turns() {
            *shares.get_mut(turn.contender)? += 1.0;
        }
        jain(&shares)
    }

    /// Grants that overtook an older request, per thousand; see the [module](self). `None` without grants.
    #[must_use]
    pub fn inversions(&self) -> Option<f64> {
        let arrival = Arrivals::of(&self.turns);
        let mut arrived: Vec<(Timestamp, Timestamp)> = self
            .turns
            .iter()
            .filter_map(|turn| Some((arrival.of_request(turn.asked)?, turn.granted)))
            .collect();
        arrived.sort_unstable();
        // The latest grant among those that had arrived by each of the moments.
        let mut latest = None;
        for (_, granted) in &mut arrived {
            latest = latest.max(Some(*granted));
            *granted = latest.unwrap_or(*granted);
        }
        let overtakes = |turn: &&Turn| {
            let before = arrived.partition_point(|(arrival, _)| *arrival < turn.asked);
            before
                .checked_sub(1)
                .and_then(|i| arrived.get(i))
                .is_some_and(|(_, granted)| *granted > turn.granted)
        };
        let all = self.turns().count();
        let inverted = self.turns().filter(overtakes).count();
        (all > 0).then(|| inverted as f64 * 1_000.0 / all as f64)
    }
}

/// Jain's index of fairness; `None` when there is nothing to share.
#[must_use]
pub fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// When what was asked before a moment has certainly arrived.
struct Arrivals {
    /// When a release began, and the earliest answer to one that began then or later; by the former.
    releases: Vec<(Timestamp, Timestamp)>,
}

impl Arrivals {
    fn of(turns: &[Turn]) -> Self {
        let mut releases: Vec<_> = turns.iter().map(|turn| (turn.leaving, turn.left)).collect();
        releases.sort_unstable();
        let mut earliest = None;
        for (_, answered) in releases.iter_mut().rev() {
            let sooner = earliest.map_or(*answered, |earliest: Timestamp| earliest.min(*answered));
            (*answered, earliest) = (sooner, Some(sooner));
        }
        Self { releases }
    }

    fn next_answer(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self.releases.partition_point(|(began, _)| *began < after);
        self.releases.get(next).map(|(_, answered)| *answered)
    }

    fn of_request(&self, asked: Timestamp) -> Option<Timestamp> {
        self.next_answer(self.next_answer(asked)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns from (contender, asked, granted), each given back one millisecond after its grant and answered half a
    /// millisecond later.
    fn trace(turns: &[(usize, u64, u64)]) -> Trace {
        let zero = Timestamp::from_origin(Duration::from_secs(1));
        let at = |millis: u64| zero + Duration::from_millis(millis);
        let turns = turns.iter().map(|&(contender, asked, granted)| Turn {
            contender,
            asked: at(asked),
            granted: at(granted),
            leaving: at(granted + 1),
            left: at(granted + 1) + Duration::from_micros(500),
        });
        Trace::new(turns.collect(), 4, zero, at(100))
    }

    #[test]
    fn fairness() {
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[9.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(trace(&[(0, 0, 0), (1, 0, 2), (2, 0, 4), (3, 0, 6)]).jain(), Some(1.0));
        assert_eq!(trace(&[(0, 0, 0), (0, 2, 2)]).jain(), Some(0.25));
    }

    #[test]
    fn in_line_nobody_is_overtaken() {
        let turns: Vec<_> =
            (0..40).map(|i| (i as usize % 4, (2 * i as u64).saturating_sub(6), 2 * i as u64)).collect();
        let trace = trace(&turns);
        assert_eq!(trace.inversions(), Some(0.0));
        assert_eq!(trace.overlaps(), 0);
        assert_eq!(trace.changes().count(), 39);
    }

    #[test]
    fn who_comes_late_and_goes_first_has_overtaken() {
        // 3 waits from 0 on; 0 and 1 take turns before it. Releases are answered at 1.5, 3.5, 5.5, …; so 3 has arrived
        // at 3.5, and the requests of 4 and 6 overtake it. That of 2 does not: nothing shows that 3 came before it.
        let barging = [(0, 0, 0), (1, 0, 2), (0, 2, 4), (1, 4, 6), (0, 6, 8), (3, 0, 10)];
        assert_eq!(trace(&barging).inversions(), Some(2.0 * 1_000.0 / 6.0));
    }

    #[test]
    fn simultaneous_requests_have_no_order() {
        assert_eq!(trace(&[(0, 0, 0), (1, 1, 4), (2, 0, 6), (3, 1, 2)]).inversions(), Some(0.0));
    }

    #[test]
    fn two_at_once_are_seen() {
        let mut two = trace(&[(0, 0, 0), (1, 0, 2), (2, 0, 4)]);
        assert_eq!(two.overlaps(), 0);
        // The first one holds on through the turns of both others.
        two.turns[0].leaving = two.turns[0].leaving + Duration::from_millis(10);
        assert_eq!(two.overlaps(), 2);
    }

    #[test]
    fn rates_and_use() {
        let trace = trace(&[(0, 0, 0), (0, 2, 2), (1, 0, 4), (0, 5, 99), (1, 98, 101)]);
        assert_eq!((trace.turns().count(), trace.changes().count()), (4, 2));
        assert!((trace.rate() - 40.0).abs() < 1e-6 && (trace.changes_per_second() - 20.0).abs() < 1e-6);
        assert!((trace.in_use() - 0.04).abs() < 1e-6, "{}", trace.in_use());
    }
}
