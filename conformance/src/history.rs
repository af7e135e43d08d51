//! Checkers of histories: exclusion, tokens and order.
//!
//! All clients of a history are on one host and stamp their events with one clock, so the check for exclusion is exact
//! and fast: put each acquisition at the moment its answer came and each release at the moment it was asked for. If the
//! holds are compatible at every moment, some order of all events is legal; if not, none is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt;

use onelock_core::{Mode, Timestamp, mode};

/// One hold that is known for certain, times in nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownHold {
    /// Which lock.
    pub lock: u32,
    /// Who, for messages.
    pub client: u32,
    /// How it shares the lock.
    pub mode: Mode,
    /// The token it got.
    pub token: i64,
    /// When it asked.
    pub asked: u64,
    /// When it knew that it holds.
    pub from: u64,
    /// Until when it was certain to hold: it asked for the release, learnt of the loss, or its deadline passed.
    pub until: u64,
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// These two held at the same time and must not.
    Overlap(KnownHold, KnownHold),
    /// These two have the same token.
    SameToken(KnownHold, KnownHold),
    /// The second asked after the first held, and has a smaller token.
    TokenBack(KnownHold, KnownHold),
    /// The second was granted before the first, which stood before it in the line.
    Overtaken(KnownHold, KnownHold),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, a, b) = match self {
            Self::Overlap(a, b) => ("held at the same time", a, b),
            Self::SameToken(a, b) => ("have the same token", a, b),
            Self::TokenBack(a, b) => ("have tokens that go back", a, b),
            Self::Overtaken(a, b) => ("were granted out of order", a, b),
        };
        let start = a.asked.min(b.asked);
        writeln!(f, "two holds of lock {} {what}:", a.lock)?;
        for hold in [a, b] {
            let ms = |time: u64| time.saturating_sub(start) as f64 / 1e6;
            writeln!(
                f,
                "  client {:>3} {:>4} token {:>6}: asked {:>10.3} ms, held {:>10.3} ms to {:>10.3} ms",
                hold.client,
                hold.mode.to_string(),
                hold.token,
                ms(hold.asked),
                ms(hold.from),
                ms(hold.until)
            )?;
        }
        Ok(())
    }
}

/// Everything that must hold for any history of a store with fencing tokens.
#[must_use]
pub fn check(holds: &[KnownHold]) -> Option<Violation> {
    exclusion(holds).or_else(|| tokens(holds))
}

/// The holds of each lock.
fn by_lock(holds: &[KnownHold]) -> impl Iterator<Item = Vec<KnownHold>> {
    let mut locks: BTreeMap<u32, Vec<KnownHold>> = BTreeMap::new();
    for hold in holds {
        locks.entry(hold.lock).or_default().push(*hold);
    }
    locks.into_values()
}

/// No two holds that are not compatible overlap, and no more permits than the limit are out. `O(n log n)`.
#[must_use]
pub fn exclusion(holds: &[KnownHold]) -> Option<Violation> {
    by_lock(holds).find_map(exclusion_of_one)
}

fn exclusion_of_one(mut holds: Vec<KnownHold>) -> Option<Violation> {
    // A hold without length proves nothing.
    holds.retain(|hold| hold.from < hold.until);
    holds.sort_by_key(|hold| hold.from);
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    // All that hold at a moment are of the kind of the first.
    let mut held: Option<usize> = None;
    for (i, hold) in holds.iter().enumerate() {
        while let Some(Reverse((end, _))) = ends.peek()
            && *end <= hold.from
        {
            ends.pop();
        }
        if ends.is_empty() {
            held = None;
        } else if let Some(other) = held.or_else(|| ends.peek().map(|Reverse((_, j))| *j))
            && !fits(&holds, &ends, other, hold.mode)
        {
            let other = ends.peek().map_or(other, |Reverse((_, j))| *j);
            return Some(Violation::Overlap(holds[other], *hold));
        }
        ends.push(Reverse((hold.until, i)));
        held.get_or_insert(i);
    }
    None
}

/// Whether `next` may hold beside what holds at a moment. Only permits are counted, and of those there are few.
fn fits(holds: &[KnownHold], ends: &BinaryHeap<Reverse<(u64, usize)>>, first: usize, next: Mode) -> bool {
    let beside: Vec<_> = match next {
        Mode::Permit { .. } => ends.iter().map(|Reverse((_, i))| holds[*i].mode).collect(),
        Mode::Exclusive | Mode::Shared => vec![holds[first].mode],
    };
    mode::holders(beside.iter().copied().chain([next])) > beside.len()
}

/// Tokens of a lock are unique, and who asked after another held has a larger one.
#[must_use]
pub fn tokens(holds: &[KnownHold]) -> Option<Violation> {
    by_lock(holds).find_map(|holds| {
        let mut seen: HashMap<i64, KnownHold> = HashMap::new();
        for hold in &holds {
            if let Some(other) = seen.insert(hold.token, *hold) {
                return Some(Violation::SameToken(other, *hold));
            }
        }
        later(&holds, |hold| hold.from, |hold| hold.asked).map(|(a, b)| Violation::TokenBack(a, b))
    })
}

/// The line is granted in its order: tokens are places in the line, so nobody holds before one with a smaller token
/// did, unless both hold together. For exclusive locks: sorted by the moment of the grant, tokens grow.
#[must_use]
pub fn fifo(holds: &[KnownHold]) -> Option<Violation> {
    by_lock(holds).find_map(|holds| {
        // `a` was over before `b` held, so `a` was granted first.
        later(&holds, |hold| hold.until, |hold| hold.from).map(|(a, b)| Violation::Overtaken(a, b))
    })
}

/// A pair `(a, b)` where `known(a) < begun(b)` and yet `a`'s token is the larger one.
fn later(
    holds: &[KnownHold],
    known: impl Fn(&KnownHold) -> u64,
    begun: impl Fn(&KnownHold) -> u64,
) -> Option<(KnownHold, KnownHold)> {
    let mut by_known: Vec<_> = holds.to_vec();
    by_known.sort_by_key(&known);
    let mut by_begun: Vec<_> = holds.to_vec();
    by_begun.sort_by_key(&begun);
    let (mut next, mut largest) = (0, None::<KnownHold>);
    for hold in by_begun {
        while next < by_known.len() && known(&by_known[next]) < begun(&hold) {
            let candidate = by_known[next];
            if largest.is_none_or(|largest| candidate.token > largest.token) {
                largest = Some(candidate);
            }
            next += 1;
        }
        if let Some(before) = largest
            && before.token > hold.token
        {
            return Some((before, hold));
        }
    }
    None
}

/// A moment as histories have it.
#[must_use]
pub fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn hold(mode: &str, token: i64, asked: u64, from: u64, until: u64) -> KnownHold {
        let client = u32::try_from(token).unwrap();
        KnownHold { lock: 0, client, mode: mode.parse().unwrap(), token, asked, from, until }
    }

    #[test]
    fn a_legal_history_has_no_violation() {
        let line = [
            hold("x", 1, 0, 1, 5),
            hold("x", 2, 0, 5, 9),
            hold("s", 3, 1, 10, 20),
            hold("s", 4, 1, 10, 15),
            hold("x", 5, 2, 20, 21),
            hold("p2", 6, 2, 21, 30),
            hold("p2", 7, 2, 22, 25),
            hold("p2", 8, 2, 25, 30),
        ];
        assert_eq!(check(&line), None);
        assert_eq!(fifo(&line), None);
    }

    #[test]
    fn each_kind_of_bad_history_is_named() {
        let overlap = |a, b| matches!(exclusion(&[a, b]), Some(Violation::Overlap(..)));
        assert!(overlap(hold("x", 1, 0, 1, 5), hold("x", 2, 0, 4, 6)));
        assert!(overlap(hold("x", 1, 0, 1, 9), hold("x", 2, 0, 4, 6)));
        assert!(overlap(hold("s", 1, 0, 1, 5), hold("x", 2, 0, 4, 6)));
        assert!(overlap(hold("x", 1, 0, 1, 5), hold("p3", 2, 0, 4, 6)));
        assert!(overlap(hold("p2w2", 1, 0, 1, 5), hold("p3", 2, 0, 4, 6)));
        assert!(overlap(hold("s", 1, 0, 1, 5), hold("p3", 2, 0, 4, 6)));
        let three = [hold("p2", 1, 0, 1, 9), hold("p2", 2, 0, 2, 9), hold("p2", 3, 0, 3, 4)];
        assert!(matches!(exclusion(&three), Some(Violation::Overlap(..))));
        // A reader that stays while a writer comes and goes, seen behind a second reader.
        let behind = [hold("s", 1, 0, 1, 20), hold("s", 2, 0, 2, 3), hold("x", 3, 0, 5, 6)];
        assert!(matches!(exclusion(&behind), Some(Violation::Overlap(..))));
        let twice = [hold("x", 1, 0, 1, 2), KnownHold { client: 9, ..hold("x", 1, 3, 4, 5) }];
        assert!(matches!(tokens(&twice), Some(Violation::SameToken(..))));
        let back = [hold("x", 7, 0, 1, 2), hold("x", 6, 3, 4, 5)];
        assert!(matches!(tokens(&back), Some(Violation::TokenBack(..))));
        let overtaken = [hold("x", 2, 0, 1, 2), hold("x", 1, 0, 4, 5)];
        assert_eq!(tokens(&overtaken), None, "both asked at once: the tokens alone are legal");
        assert!(matches!(fifo(&overtaken), Some(Violation::Overtaken(..))));
        assert!(check(&overtaken).is_none());
        let text = fifo(&overtaken).unwrap().to_string();
        assert!(text.contains("out of order") && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn locks_do_not_meet() {
        let other = KnownHold { lock: 1, ..hold("x", 1, 0, 1, 5) };
        assert_eq!(check(&[hold("x", 1, 0, 1, 5), other]), None);
    }

    /// The same by definition: at every moment, everybody against everybody.
    fn brute_exclusion(holds: &[KnownHold]) -> bool {
        (0..40).all(|time| {
            let held: Vec<_> = holds.iter().filter(|h| h.from <= time && time < h.until).collect();
            let kind = |hold: &KnownHold| hold.mode.to_string().chars().next();
            let permits = || {
                held.iter().filter_map(|hold| match hold.mode {
                    Mode::Permit { limit, weight } => Some((limit.get(), weight.get())),
                    _ => None,
                })
            };
            let weight: u32 = permits().map(|(_, weight)| weight).sum();
            held.iter().all(|a| held.iter().all(|b| kind(a) == kind(b)))
                && permits().all(|(limit, _)| weight <= limit)
                && match held.first().map(|h| h.mode) {
                    Some(Mode::Exclusive) => held.len() == 1,
                    _ => true,
                }
        })
    }

    fn brute_order(holds: &[KnownHold]) -> (bool, bool) {
        let pairs = || holds.iter().flat_map(|a| holds.iter().map(move |b| (a, b)));
        let unique = pairs().all(|(a, b)| std::ptr::eq(a, b) || a.token != b.token);
        let tokens = unique && pairs().all(|(a, b)| !(a.from < b.asked && a.token > b.token));
        (tokens, pairs().all(|(a, b)| !(a.until < b.from && a.token > b.token)))
    }

    #[test]
    fn random_histories_agree_with_the_definition() {
        let mut rng = Rng::new(7);
        let modes = ["x", "x", "s", "s", "p2", "p1", "p3w2", "p3"];
        let (mut good, mut bad) = (0, 0);
        for _ in 0..60_000 {
            let one = rng.below(3) == 0;
            let mode = modes[rng.index(modes.len())];
            let holds: Vec<_> = (0..1 + rng.below(5))
                .map(|_| {
                    let asked = rng.below(20);
                    let from = asked + rng.below(6);
                    let mode = if one { mode } else { modes[rng.index(modes.len())] };
                    hold(mode, 1 + i64::try_from(rng.below(8)).unwrap(), asked, from, from + 1 + rng.below(8))
                })
                .collect();
            let legal = brute_exclusion(&holds);
            assert_eq!(exclusion(&holds).is_none(), legal, "{holds:?}");
            let (order, line) = brute_order(&holds);
            assert_eq!(tokens(&holds).is_none(), order, "{holds:?}");
            assert_eq!(fifo(&holds).is_none(), line, "{holds:?}");
            if legal { good += 1 } else { bad += 1 }
        }
        assert!(good > 1000 && bad > 1000, "{good} legal, {bad} not");
    }

    #[test]
    fn a_million_holds_are_checked_quickly() {
        let holds: Vec<_> = (0..1_000_000)
            .map(|i| KnownHold {
                lock: u32::try_from(i % 16).unwrap(),
                client: 0,
                mode: Mode::Exclusive,
                token: i64::try_from(i).unwrap() + 1,
                asked: i * 2,
                from: i * 2 + 1,
                until: i * 2 + 2,
            })
            .collect();
        assert_eq!(check(&holds).or_else(|| fifo(&holds)), None);
    }
}
