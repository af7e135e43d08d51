//! What a client knows of one line from a watch: which entries it has seen and which of them are gone.
//!
//! Only entries ahead of a waiter matter to it, and they only ever leave: an entry that joins later has a larger
//! number. So the watch brings deletions only, and a waiter's place is known from one reading of the line up to its own
//! number and the deletions since. Pure: no I/O and no waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lock_core::mode::holders;

use crate::keys::Seat;
use crate::lines::Reading;

/// How many deletions are remembered, for readings that are older than what the watch has brought.
const REMEMBERED: usize = 512;

/// A line as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// By number and key: the order of the line.
    seats: BTreeMap<(i64, Vec<u8>), Seat>,
    /// The number of each key in `seats`.
    numbers: HashMap<Vec<u8>, i64>,
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

    pub(crate) fn complete(&self) -> i64 {
        self.complete
    }

    /// Takes a reading that holds every living entry with a number above what it says and up to `upto`.
    ///
    /// False, and nothing is taken, when it is too old to be brought up to date, or leaves a gap.
    pub(crate) fn read(&mut self, reading: &Reading, upto: i64) -> bool {
        let Reading { line, above, revision } = reading;
        if *revision < self.remembers || *above > self.complete {
            return false;
        }
        let line = line.iter().filter(|seat| seat.number > *above && seat.number <= upto);
        if *revision >= self.seen {
            // Newer than all that is known: what it does not have is gone, wherever the watch has got to.
            let range = self.seats.range((above.saturating_add(1), Vec::new())..);
            let old: Vec<_> =
                range.map(|(place, _)| place).take_while(|place| place.0 <= upto).cloned().collect();
            for place in old {
                self.take_out(&place);
            }
            line.for_each(|seat| self.put(seat));
            // What is below may have left since without the watch having said so yet.
            if *above == 0 {
                self.seen = *revision;
            }
        } else {
            // Older: up to `complete` it brings nothing new, and beyond that some of it may be gone since.
            let gone = |seat: &Seat| self.deleted.iter().any(|(at, key)| *at > *revision && *key == seat.key);
            let new: Vec<_> = line.filter(|seat| seat.number > self.complete && !gone(seat)).collect();
            new.into_iter().for_each(|seat| self.put(seat));
        }
        self.complete = self.complete.max(upto);
        true
    }

    fn put(&mut self, seat: &Seat) {
        let was = self.numbers.get(&seat.key).copied();
        if was.is_some_and(|was| was > seat.number) {
            return;
        }
        if let Some(was) = was {
            // Made again: the one before is gone.
            self.seats.remove(&(was, seat.key.clone()));
        }
        self.numbers.insert(seat.key.clone(), seat.number);
        self.seats.insert((seat.number, seat.key.clone()), seat.clone());
    }

    fn take_out(&mut self, place: &(i64, Vec<u8>)) {
        if self.seats.remove(place).is_some() {
            self.numbers.remove(&place.1);
        }
    }

    /// Takes a deletion that happened at `revision`.
    pub(crate) fn delete(&mut self, key: &[u8], revision: i64) {
        if let Some(number) = self.numbers.get(key).copied().filter(|number| *number <= revision) {
            self.take_out(&(number, key.to_vec()));
        }
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
        let found = self.numbers.get(key).copied();
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

    fn reading(line: &[Seat], above: i64, revision: i64) -> Reading {
        Reading { line: line.to_vec(), above, revision }
    }

    #[test]
    fn the_next_holds_when_those_ahead_are_gone() {
        let mut mirror = Mirror::from(9);
        assert_eq!(mirror.standing(b"7", Some(7)), Known::Nothing);
        assert!(mirror.read(&reading(&[seat(3, "x"), seat(5, "s"), seat(7, "s")], 0, 9), 7));
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
        assert!(mirror.read(&reading(&[seat(3, "x"), seat(5, "x")], 0, 8), 5), "read before the deletion");
        assert_eq!(mirror.standing(b"5", Some(5)), Known::Holds(5));
        let mut late = Mirror::from(9);
        assert!(!late.read(&reading(&[seat(3, "x"), seat(5, "x")], 0, 8), 5), "a deletion may be missing");
    }

    #[test]
    fn a_key_that_was_made_again_is_another_entry() {
        let mut mirror = Mirror::from(2);
        let again = Seat { number: 8, ..seat(3, "x") };
        assert!(mirror.read(&reading(&[seat(5, "x"), again], 0, 8), 8));
        mirror.delete(b"3", 4);
        assert_eq!(mirror.standing(b"3", Some(8)), Known::Waits(8));
        mirror.delete(b"3", 9);
        assert_eq!(mirror.standing(b"3", Some(8)), Known::Gone);
    }

    #[test]
    fn what_is_new_is_added_and_a_gap_is_refused() {
        let mut mirror = Mirror::from(9);
        assert!(!mirror.read(&reading(&[seat(7, "x")], 3, 9), 7), "up to 3 nothing is known");
        assert!(mirror.read(&reading(&[seat(3, "x"), seat(5, "x")], 0, 9), 5));
        assert!(mirror.read(&reading(&[seat(12, "x")], 5, 12), 12));
        assert_eq!(mirror.standing(b"12", Some(12)), Known::Waits(12));
        // They left before the newer reading, which did not look there.
        mirror.delete(b"3", 10);
        assert_eq!(mirror.standing(b"5", Some(5)), Known::Holds(5));
        mirror.delete(b"5", 11);
        assert_eq!(mirror.standing(b"12", Some(12)), Known::Holds(12));
    }

    proptest! {
        /// Readings of any age between deletions never make a mirror say more or less than the true line.
        #[test]
        fn it_never_disagrees_with_the_line(steps in prop::collection::vec((0_u8..5, 0_usize..8), 1..60)) {
            let modes = ["x", "s", "s", "p2", "p2", "x", "s", "p1"];
            let (mut revision, mut line) = (1_i64, Vec::<Seat>::new());
            let mut mirror = Mirror::from(1);
            let mut readings: Vec<Reading> = Vec::new();
            let mut unsent: VecDeque<(Vec<u8>, i64)> = VecDeque::new();
            let mut joined = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => { revision += 1; line.push(seat(revision, modes[pick])); joined.push(revision); }
                    1 if pick < line.len() => {
                        revision += 1;
                        unsent.push_back((line.remove(pick).key, revision));
                    }
                    2 => readings.push(reading(&line, 0, revision)),
                    4 => {
                        let above = mirror.complete();
                        let new: Vec<_> = line.iter().filter(|seat| seat.number > above).cloned().collect();
                        readings.push(reading(&new, above, revision));
                    }
                    _ => if let Some((key, at)) = unsent.pop_front() { mirror.delete(&key, at); },
                }
                if step == 3 && !readings.is_empty() {
                    let read = readings.remove(pick % readings.len());
                    prop_assert!(mirror.read(&read, read.revision));
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
