//! What a client knows of one line from a watch: which entries it has seen and which of them are gone.
//!
//! Only entries ahead of a waiter matter to it, and they only ever leave: an entry that joins later has a larger
//! number. So the watch brings deletions only, and a waiter's place is known from one reading of the line up to its own
//! number and the deletions since. Pure: no I/O and no waiting.

use std::collections::{BTreeMap, VecDeque};

use lock_core::mode::holders;

use crate::keys::Seat;

/// How many deletions are remembered, for readings that are older than what the watch has brought.
const REMEMBERED: usize = 512;

/// A line as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// By number and key: the order of the line.
    seats: BTreeMap<(i64, Vec<u8>), Seat>,
    /// Every living entry with a number up to this one is in `seats`.
    complete: i64,
    /// The latest revision whose deletions are applied.
    seen: i64,
    /// The latest deletions, by revision.
    deleted: VecDeque<(i64, Vec<u8>)>,
    /// Deletions after this revision are all in `deleted`.
    remembers: i64,
}

impl Mirror {
    /// Nothing is known yet; the watch brings every deletion after `revision`.
    pub(crate) fn from(revision: i64) -> Self {
        Self { seen: revision, remembers: revision, ..Self::default() }
    }

    /// Takes a reading of the line at `revision` that holds every living entry with a number up to `upto`.
    ///
    /// False, and nothing is taken, when it is too old to be brought up to date.
    pub(crate) fn read(&mut self, line: &[Seat], upto: i64, revision: i64) -> bool {
        if revision < self.remembers {
            return false;
        }
        let line = line.iter().filter(|seat| seat.number <= upto);
        let place = |seat: &Seat| (seat.number, seat.key.clone());
        if revision >= self.seen {
            // Newer than all that is known: what it does not have is gone, wherever the watch has got to.
            self.seats.retain(|place, _| place.0 > upto);
            self.seats.extend(line.map(|seat| (place(seat), seat.clone())));
            self.seen = revision;
        } else {
            // Older: up to `complete` it brings nothing new, and beyond that some of it may be gone since.
            let gone = |seat: &Seat| self.deleted.iter().any(|(at, key)| *at > revision && *key == seat.key);
            let new: Vec<_> = line
                .filter(|seat| seat.number > self.complete && !gone(seat))
                .map(|seat| (place(seat), seat.clone()))
                .collect();
            self.seats.extend(new);
        }
        self.complete = self.complete.max(upto);
        true
    }

    /// Takes a deletion that happened at `revision`.
    pub(crate) fn delete(&mut self, key: &[u8], revision: i64) {
        self.seats.retain(|place, _| place.1 != key || place.0 > revision);
        self.seen = self.seen.max(revision);
        self.deleted.push_back((revision, key.to_vec()));
        if self.deleted.len() > REMEMBERED
            && let Some((at, _)) = self.deleted.pop_front()
        {
            self.remembers = self.remembers.max(at);
        }
    }

    /// The entries that hold.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values().take(holders(self.seats.values().map(|seat| seat.mode)))
    }

    /// What is known of the entry with this key, and this number if that is known.
    pub(crate) fn standing(&self, key: &[u8], number: Option<i64>) -> Known {
        let found = self.seats.keys().find(|place| place.1 == key).map(|place| place.0);
        match (found, number) {
            (Some(found), _) if found > self.complete => Known::Nothing,
            (Some(found), Some(number)) if found != number => Known::Gone,
            (Some(found), _) => {
                let holds = self.holders().any(|seat| seat.key == key);
                if holds { Known::Holds(found) } else { Known::Waits(found) }
            }
            (None, Some(number)) if number <= self.complete => Known::Gone,
            (None, _) => Known::Nothing,
        }
    }
}

/// What a [`Mirror`] knows of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It holds, under this number.
    Holds(i64),
    /// It waits, under this number.
    Waits(i64),
    /// It was there and is not any more.
    Gone,
    /// The line has to be read.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Mode;
    use proptest::prelude::*;

    fn seat(number: i64, mode: &str) -> Seat {
        let mode: Mode = mode.parse().unwrap();
        Seat { number, key: number.to_string().into_bytes(), mode, lease: 1, value: Vec::new() }
    }

    #[test]
    fn the_next_holds_when_those_ahead_are_gone() {
        let mut mirror = Mirror::from(9);
        assert_eq!(mirror.standing(b"7", Some(7)), Known::Nothing);
        assert!(mirror.read(&[seat(3, "x"), seat(5, "s"), seat(7, "s")], 7, 9));
        assert_eq!(mirror.standing(b"5", Some(5)), Known::Waits(5));
        mirror.delete(b"3", 10);
        assert_eq!(mirror.standing(b"5", Some(5)), Known::Holds(5));
        assert_eq!(mirror.standing(b"7", None), Known::Holds(7));
        mirror.delete(b"7", 11);
        assert_eq!(mirror.standing(b"7", Some(7)), Known::Gone);
        assert_eq!(mirror.standing(b"12", Some(12)), Known::Nothing);
    }

    #[test]
    fn a_reading_older_than_the_watch_is_brought_up_to_date() {
        let mut mirror = Mirror::from(2);
        mirror.delete(b"3", 10);
        assert!(mirror.read(&[seat(3, "x"), seat(5, "x")], 5, 8), "read before the deletion");
        assert_eq!(mirror.standing(b"5", Some(5)), Known::Holds(5));
        let mut late = Mirror::from(9);
        assert!(!late.read(&[seat(3, "x"), seat(5, "x")], 5, 8), "a deletion may be missing");
    }

    #[test]
    fn a_key_that_was_made_again_is_another_entry() {
        let mut mirror = Mirror::from(2);
        let again = Seat { number: 8, ..seat(3, "x") };
        assert!(mirror.read(&[seat(5, "x"), again], 8, 8));
        mirror.delete(b"3", 4);
        assert_eq!(mirror.standing(b"3", Some(8)), Known::Waits(8));
        mirror.delete(b"3", 9);
        assert_eq!(mirror.standing(b"3", Some(8)), Known::Gone);
    }

    proptest! {
        /// Readings of any age between deletions never make a mirror say more or less than the true line.
        #[test]
        fn it_never_disagrees_with_the_line(steps in prop::collection::vec((0_u8..4, 0_usize..8), 1..60)) {
            let modes = ["x", "s", "s", "p2", "p2", "x", "s", "p1"];
            let (mut revision, mut line) = (1_i64, Vec::<Seat>::new());
            let mut mirror = Mirror::from(1);
            let mut readings: Vec<(Vec<Seat>, i64)> = Vec::new();
            let mut unsent: VecDeque<(Vec<u8>, i64)> = VecDeque::new();
            let mut joined = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => { revision += 1; line.push(seat(revision, modes[pick])); joined.push(revision); }
                    1 if pick < line.len() => {
                        revision += 1;
                        unsent.push_back((line.remove(pick).key, revision));
                    }
                    2 => readings.push((line.clone(), revision)),
                    _ => if let Some((key, at)) = unsent.pop_front() { mirror.delete(&key, at); },
                }
                if step == 3 && !readings.is_empty() {
                    let (read, at) = readings.remove(pick % readings.len());
                    prop_assert!(mirror.read(&read, at, at));
                }
            }
            while let Some((key, at)) = unsent.pop_front() { mirror.delete(&key, at); }
            let holds = holders(line.iter().map(|seat| seat.mode));
            for number in joined {
                let key = number.to_string().into_bytes();
                let truth = match line.iter().position(|seat| seat.key == key) {
                    Some(i) if i < holds => Known::Holds(number),
                    Some(_) => Known::Waits(number),
                    None => Known::Gone,
                };
                let known = mirror.standing(&key, Some(number));
                prop_assert!(known == truth || known == Known::Nothing, "{known:?} is not {truth:?}");
            }
        }
    }
}
