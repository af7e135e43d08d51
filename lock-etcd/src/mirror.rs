//! What a client knows of one line from a watch: which entries it has seen and which of them are gone.
//!
//! One reading of the line that is not older than the watch, and what the watch brings since: with the two the whole line
//! is known up to the latest event. So whoever joins a line that its client follows needs no reading: when the event of
//! its own key has come, every entry ahead of it is known. Pure: no I/O and no waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};

use onelock_core::Mode;
use onelock_core::mode::holders;

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
    /// Every living entry with a number up to this one has been read.
    read: i64,
    /// The latest revision whose events are applied.
    seen: i64,
    /// The watch brings every event after this revision.
    start: i64,
    /// The latest deletions, by revision.
    deleted: VecDeque<(i64, Vec<u8>)>,
    /// Deletions after this revision are all in `deleted`.
    remembers: i64,
}

impl Mirror {
    /// Nothing is known yet; the watch brings every event after `revision`.
    pub(crate) fn from(revision: i64) -> Self {
        Self { seen: revision, start: revision, remembers: revision, ..Self::default() }
    }

    /// Every living entry with a number up to this one is in `seats`.
    pub(crate) fn complete(&self) -> i64 {
        if self.follows() { self.read.max(self.seen) } else { self.read }
    }

    /// Whether there was a reading from which the events lead on, so that no other is needed.
    pub(crate) fn follows(&self) -> bool {
        self.read > 0 && self.read >= self.start
    }

    /// The latest revision up to which all is known that happened.
    pub(crate) fn seen(&self) -> i64 {
        self.seen
    }

    /// The line, as far as it is known.
    pub(crate) fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }

    /// The revisions of the latest departures, the latest first.
    pub(crate) fn departures(&self) -> impl ExactSizeIterator<Item = i64> {
        self.deleted.iter().rev().map(|(revision, _)| *revision)
    }

    pub(crate) fn number_of(&self, key: &[u8]) -> Option<i64> {
        self.numbers.get(key).copied()
    }

    /// Whether an entry of this mode that joins now would wait, as far as this client knows.
    pub(crate) fn is_against(&self, mode: Mode) -> bool {
        self.follows() && !self.seats.values().all(|seat| mode.shares_with(seat.mode))
    }

    /// Takes a reading that holds every living entry with a number above what it says and up to `upto`.
    ///
    /// False, and nothing is taken, when it is too old to be brought up to date, or leaves a gap.
    pub(crate) fn read(&mut self, reading: &Reading, upto: i64) -> bool {
        let Reading { line, above, revision } = reading;
        let complete = self.complete();
        if *revision < self.remembers || *above > complete {
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
            let new: Vec<_> = line.filter(|seat| seat.number > complete && !gone(seat)).collect();
            new.into_iter().for_each(|seat| self.put(seat));
        }
        self.read = self.read.max(upto);
        true
    }

    /// Takes an entry that joined: its number is the revision.
    pub(crate) fn join(&mut self, seat: &Seat) {
        // What was read later has it, unless it is gone.
        if seat.number > self.read {
            self.put(seat);
        }
        self.seen = self.seen.max(seat.number);
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

    /// Takes out an entry that the store has deleted, before the event comes.
    pub(crate) fn leave(&mut self, key: &[u8]) {
        if let Some(number) = self.numbers.get(key).copied() {
            self.take_out(&(number, key.to_vec()));
        }
    }

    /// The entries that hold.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values().take(holders(self.seats.values().map(|seat| seat.mode)))
    }

    /// What is known of the entry with this key, and this number if that is known.
    pub(crate) fn standing(&self, key: &[u8], number: Option<i64>) -> Known {
        let (found, complete) = (self.numbers.get(key).copied(), self.complete());
        match (found, number) {
            (Some(found), _) if found > complete => Known::Nothing,
            (Some(found), Some(number)) if found != number => Known::Gone,
            (Some(found), _) => {
                let holds = self.holders().any(|seat| seat.key == key);
                if holds { Known::Holds(found) } else { Known::Waits(found) }
            }
            (None, Some(number)) if number <= complete => Known::Gone,
            (None, Some(_)) if self.follows() => Known::Coming,
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
    /// Its event is on its way.
    Coming,
    /// The line has to be read.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn what_joins_a_line_that_is_followed_is_known_by_its_event() {
        let mut mirror = Mirror::from(9);
        mirror.join(&seat(11, "x"));
        assert!(!mirror.is_against(Mode::Exclusive), "what was there before is not known");
        assert_eq!(mirror.standing(b"11", Some(11)), Known::Nothing);
        assert!(mirror.read(&reading(&[seat(3, "x")], 0, 10), 10));
        assert!(mirror.is_against(Mode::Shared));
        assert_eq!(mirror.standing(b"11", Some(11)), Known::Waits(11));
        assert_eq!(mirror.standing(b"14", Some(14)), Known::Coming);
        mirror.leave(b"3");
        assert_eq!(mirror.standing(b"11", Some(11)), Known::Holds(11));
        mirror.delete(b"3", 12);
        mirror.delete(b"11", 13);
        assert!(!mirror.is_against(Mode::Exclusive));
        assert_eq!(mirror.standing(b"14", Some(14)), Known::Coming, "somebody may be ahead of it yet");
        mirror.join(&seat(14, "x"));
        assert_eq!(mirror.standing(b"14", Some(14)), Known::Holds(14));
    }

    #[test]
    fn a_reading_knows_better_than_an_event_that_comes_late() {
        let mut mirror = Mirror::from(2);
        assert!(mirror.read(&reading(&[seat(6, "x")], 0, 8), 8));
        // It joined and left before the reading.
        mirror.join(&seat(4, "x"));
        assert_eq!(mirror.standing(b"6", Some(6)), Known::Holds(6));
    }

    /// What the watch brings.
    enum Event {
        Joined(Seat),
        Left(Vec<u8>, i64),
    }

    fn happens(mirror: &mut Mirror, event: Event) {
        match event {
            Event::Joined(seat) => mirror.join(&seat),
            Event::Left(key, revision) => mirror.delete(&key, revision),
        }
    }

    /// What the line says of the entry with this number.
    fn truth(line: &[Seat], number: i64) -> Known {
        let holds = holders(line.iter().map(|seat| seat.mode));
        match line.iter().position(|seat| seat.number == number) {
            Some(i) if i < holds => Known::Holds(number),
            Some(_) => Known::Waits(number),
            None => Known::Gone,
        }
    }

    proptest! {
        /// Readings of any age between events never make a mirror say more or less than the true line, and it never runs
        /// ahead of it on the way.
        #[test]
        fn it_never_disagrees_with_the_line(steps in prop::collection::vec((0_u8..6, 0_usize..8), 1..60)) {
            let modes = ["x", "s", "s", "p2", "p2", "x", "s", "p1"];
            let (mut revision, mut line) = (1_i64, Vec::<Seat>::new());
            let mut mirror = Mirror::from(1);
            let mut readings: Vec<Reading> = Vec::new();
            let mut unsent: VecDeque<Event> = VecDeque::new();
            let mut joined = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => {
                        revision += 1;
                        line.push(seat(revision, modes[pick]));
                        unsent.push_back(Event::Joined(seat(revision, modes[pick])));
                        joined.push(revision);
                    }
                    1 | 5 if pick < line.len() => {
                        revision += 1;
                        let key = line.remove(pick).key;
                        if step == 5 {
                            mirror.leave(&key);
                        }
                        unsent.push_back(Event::Left(key, revision));
                    }
                    2 => readings.push(reading(&line, 0, revision)),
                    4 => {
                        let above = mirror.complete();
                        let new: Vec<_> = line.iter().filter(|seat| seat.number > above).cloned().collect();
                        readings.push(reading(&new, above, revision));
                    }
                    _ => if let Some(event) = unsent.pop_front() { happens(&mut mirror, event); },
                }
                if step == 3 && !readings.is_empty() {
                    let read = readings.remove(pick % readings.len());
                    prop_assert!(mirror.read(&read, read.revision));
                }
                for number in &joined {
                    let (known, truth) = (mirror.standing(number.to_string().as_bytes(), Some(*number)), truth(&line, *number));
                    let early = match known {
                        Known::Holds(_) => matches!(truth, Known::Waits(_)),
                        Known::Gone => truth != Known::Gone,
                        _ => false,
                    };
                    prop_assert!(!early, "{known:?} while it is {truth:?}");
                }
            }
            while let Some(event) = unsent.pop_front() { happens(&mut mirror, event); }
            for number in joined {
                let (known, truth) = (mirror.standing(number.to_string().as_bytes(), Some(number)), truth(&line, number));
                prop_assert!(known == truth || known == Known::Nothing, "{known:?} is not {truth:?}");
                prop_assert!(known == truth || !mirror.follows(), "a line that is followed is known");
            }
        }
    }
}
