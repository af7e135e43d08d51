//! Waiting far from the front of a long line: the line is not followed until it is nearly one's turn.
//!
//! Whoever follows a line hears of all who join and leave it, and in a long one that is a crowd that hears of a crowd. So who is
//! far behind has the line watched from a later revision on: etcd says nothing until then, and no watch has to be opened when
//! time is short (one that etcd opens while somebody writes may be served only after 100 ms). Which revision that is, is
//! reckoned from how the line moved lately.
//!
//! That may be wrong: for once two or all go at one revision, or nobody joins any more. So one entry ahead, the mark, is watched
//! as well. An exclusive entry keeps everybody behind it waiting: until it is gone nothing can happen that a waiter behind
//! it must know. Its end says only that it is time to look, because it may have left without ever holding. Either way the
//! line is then followed again, and read once for all who wait here. Who was evicted meanwhile is told then, or by its renewal.
//!
//! Nothing falls between: the line is followed until one of its events, later than the start of the mark's watch, shows the mark
//! to be there yet.

use std::collections::HashMap;

use onelock_core::Mode;

use crate::keys::Seat;
use crate::mirror::Mirror;

/// How many entries are ahead of all that wait here when the line is not followed any more. To come back costs a reading and
/// some messages: as much as the news of about ten who come and go.
const FAR: usize = 16;

/// How many are to be left, the mark with them, when it is followed again.
const NEAR: usize = 4;

/// The how-manieth entry ahead is the mark.
const LAST: usize = 2;

/// An entry ahead of all that wait here.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The watch of its end.
    pub(crate) id: i64,
    pub(crate) number: i64,
    pub(crate) key: Vec<u8>,
    /// The watch tells what happens after this revision, once it stands.
    pub(crate) stands: Option<i64>,
    pub(crate) gone: bool,
}

impl Mark {
    /// Whether it is certain that its end will be told, as long as all that wait here are behind it.
    pub(crate) fn is_sure(&self, mirror: &Mirror) -> bool {
        self.stands.is_some_and(|start| start <= mirror.seen())
    }

    /// Whether it has no use any more: it is gone, or somebody waits here who is ahead of it, or for itself.
    pub(crate) fn is_void<T>(&self, mirror: &Mirror, waiters: &HashMap<Vec<u8>, T>) -> bool {
        let ahead = |seat: &&Seat| seat.number <= self.number;
        let there = mirror.number_of(&self.key) == Some(self.number);
        self.gone || !there || mirror.seats().take_while(ahead).any(|seat| waiters.contains_key(&seat.key))
    }
}

/// Whether all that wait here are far from the front, and stay there until entries ahead of them have gone: so many exclusive
/// ones come first.
pub(crate) fn is_far<T>(mirror: &Mirror, waiters: &HashMap<Vec<u8>, T>) -> bool {
    let far = |seat: &Seat| seat.mode == Mode::Exclusive && !waiters.contains_key(&seat.key);
    mirror.follows() && mirror.len() > FAR && mirror.seats().take(FAR + 1).all(far)
}

/// The entry to watch instead of the line: exclusive, ahead of all that wait here, and not by much.
pub(crate) fn mark<'a, T>(mirror: &'a Mirror, waiters: &HashMap<Vec<u8>, T>) -> Option<&'a Seat> {
    let ahead: Vec<_> = mirror.seats().take_while(|seat| !waiters.contains_key(&seat.key)).collect();
    ahead.into_iter().rev().skip(LAST - 1).find(|seat| seat.mode == Mode::Exclusive)
}

/// How a line moves: so many revisions of the store for so many departures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    revisions: i64,
    departures: i64,
}

impl Pace {
    /// How it moved lately.
    pub(crate) fn of(mirror: &Mirror) -> Option<Self> {
        let mut lately = mirror.departures();
        let departures = i64::try_from(lately.len()).unwrap_or_default() - 1;
        let (last, first) = (lately.next()?, lately.last()?);
        (departures > 0).then_some(Self { revisions: last - first, departures })
    }
}

/// The way from where the line was followed last to where it is followed again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The latest revision that was seen.
    seen: i64,
    /// Up to which number entries are counted, and how many there were.
    number: i64,
    ahead: usize,
}

impl Way {
    pub(crate) fn up_to(mark: &Mark, mirror: &Mirror) -> Self {
        Self { seen: mirror.seen(), number: mark.number, ahead: up_to(mirror, mark.number) }
    }

    /// From which revision on to follow the line again.
    pub(crate) fn ends(&self, pace: Option<Pace>) -> i64 {
        let departures = i64::try_from(self.ahead.saturating_sub(NEAR)).unwrap_or_default();
        let pace = pace.unwrap_or(Pace { revisions: 1, departures: 1 });
        // Every departure is a revision, and too late is worse than too early.
        let reckoned = pace.revisions.saturating_mul(departures) / pace.departures;
        self.seen + departures.max(reckoned - reckoned / 32)
    }

    /// How the line moved on the way.
    pub(crate) fn pace(&self, mirror: &Mirror) -> Option<Pace> {
        let departures = self.ahead.saturating_sub(up_to(mirror, self.number));
        let departures = i64::try_from(departures).ok().filter(|departures| *departures > 0)?;
        Some(Pace { revisions: mirror.seen() - self.seen, departures })
    }
}

fn up_to(mirror: &Mirror, number: i64) -> usize {
    mirror.seats().take_while(|seat| seat.number <= number).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use etcd_client::proto::{PbEvent, PbKeyValue};
    use onelock_core::{LockName, Wake};
    use proptest::prelude::*;

    use super::*;
    use crate::keys::Keys;
    use crate::lines::Reading;
    use crate::orders::Orders;
    use crate::watch::{Look, Told, User, Watch};

    const LINE: i64 = 1;

    fn key(number: i64) -> Vec<u8> {
        format!("onelock/n/{number}").into_bytes()
    }

    fn event(number: i64, gone: Option<i64>) -> PbEvent {
        let (r#type, revision) = (i32::from(gone.is_some()), gone.unwrap_or(number));
        let kv = PbKeyValue {
            key: key(number),
            create_revision: number,
            mod_revision: revision,
            ..Default::default()
        };
        PbEvent { r#type, kv: Some(kv), ..Default::default() }
    }

    /// A client that follows a line of exclusive entries with the numbers from 1 to `last`.
    fn following(orders: &mut Orders, last: i64) -> User {
        let span = Keys::new("onelock/").line(&LockName::new("n").unwrap());
        let watch = Arc::new(Watch::new(span));
        watch.open(orders);
        watch.stands(LINE, last);
        let seat =
            |number| Seat { number, key: key(number), mode: Mode::Exclusive, lease: 1, value: Vec::new() };
        let line = (1..=last).map(seat).collect();
        watch.learn(&Reading { line, above: 0, revision: last }, last);
        User::new(watch)
    }

    fn happens(user: &User, orders: &mut Orders, id: i64, event: PbEvent) {
        if user.0.happened(id, vec![event]) {
            user.0.turn(orders);
        }
    }

    fn waits(user: &User, number: i64) -> tokio::sync::oneshot::Receiver<Told> {
        match user.0.look(&key(number), Some(number)) {
            Look::Later(told) => told,
            _ => panic!("{number} does not wait"),
        }
    }

    #[test]
    fn the_line_is_left_when_its_events_are_past_the_start_of_the_marks_watch() {
        let mut orders = Orders::default();
        let user = following(&mut orders, 30);
        let mut told = waits(&user, 30);
        happens(&user, &mut orders, LINE, event(31, None));
        let mark = LINE + 1;
        assert!(user.0.has(mark), "the mark is watched");
        happens(&user, &mut orders, LINE, event(32, None));
        assert!(user.0.has(LINE), "its watch does not stand");
        user.0.stands(mark, 35);
        happens(&user, &mut orders, LINE, event(34, None));
        assert!(user.0.has(LINE), "the mark may have gone at 35");
        happens(&user, &mut orders, LINE, event(36, None));
        assert!(!user.0.has(LINE) && user.0.has(mark) && user.0.has(mark + 1));
        assert!(told.try_recv().is_err());
        happens(&user, &mut orders, mark, event(29, Some(37)));
        assert!(matches!(told.try_recv(), Ok(Told::LookAgain)));
        assert!(!user.0.has(mark) && !user.0.has(mark + 1) && user.0.has(mark + 2));
    }

    #[test]
    fn a_mark_that_is_gone_or_waited_for_here_is_none() {
        for gone in [false, true] {
            let mut orders = Orders::default();
            let user = following(&mut orders, 30);
            let _told = waits(&user, 30);
            happens(&user, &mut orders, LINE, event(31, None));
            let mark = LINE + 1;
            user.0.stands(mark, 31);
            let mut own = None;
            if gone {
                happens(&user, &mut orders, LINE, event(28, Some(32)));
            } else {
                own = Some(waits(&user, 28));
                happens(&user, &mut orders, LINE, event(32, None));
            }
            assert!(user.0.has(LINE) && !user.0.has(mark), "{gone}");
            assert!(own.is_none_or(|mut own| own.try_recv().is_err()));
        }
    }

    #[test]
    fn a_line_is_followed_again_from_the_revision_that_was_asked_for() {
        let mut orders = Orders::default();
        let user = following(&mut orders, 30);
        let mut told = waits(&user, 30);
        happens(&user, &mut orders, LINE, event(31, None));
        user.0.stands(LINE + 1, 31);
        happens(&user, &mut orders, LINE, event(32, None));
        let later = LINE + 2;
        assert!(user.0.has(later));
        user.0.stands(later, 32);
        assert!(told.try_recv().is_err(), "it does not stand for the present");
        happens(&user, &mut orders, later, event(1, Some(60)));
        assert!(matches!(told.try_recv(), Ok(Told::LookAgain)));
        assert!(!user.0.has(LINE + 1), "the mark is not needed any more");
        assert!(matches!(user.0.look(&key(30), Some(30)), Look::Read), "nothing is known");
        let seat = Seat { number: 30, key: key(30), mode: Mode::Exclusive, lease: 1, value: Vec::new() };
        user.0.learn(&Reading { line: vec![seat], above: 0, revision: 60 }, 60);
        assert!(matches!(user.0.look(&key(30), Some(30)), Look::Now(Ok(Wake::Held(_)))));
    }

    #[test]
    fn a_short_line_is_always_followed_and_so_are_readers() {
        let mut orders = Orders::default();
        let user = following(&mut orders, 16);
        let _told = waits(&user, 16);
        happens(&user, &mut orders, LINE, event(1, Some(17)));
        assert!(!user.0.has(LINE + 1));
        let mut mirror = Mirror::from(1);
        let mode = |number| if number == 9 { Mode::Shared } else { Mode::Exclusive };
        let seat =
            |number| Seat { number, key: key(number), mode: mode(number), lease: 1, value: Vec::new() };
        let line = (1..=40).map(seat).collect();
        assert!(mirror.read(&Reading { line, above: 0, revision: 40 }, 40));
        assert!(!is_far(&mirror, &HashMap::<_, ()>::new()));
    }

    proptest! {
        /// Each departure is a revision at least, so it is never too late when they are all that happens.
        #[test]
        fn it_is_never_later_than_the_last_but_a_few(ahead in 17_usize..500, extra in 0_i64..3, seen in 1_i64..1000) {
            let way = Way { seen, number: 1, ahead };
            let pace = Pace { revisions: 100 * (extra + 1), departures: 100 };
            let ends = way.ends(Some(pace)) - seen;
            let departures = ends / (extra + 1);
            let left = i64::try_from(ahead).unwrap() - departures;
            prop_assert!(left >= i64::try_from(NEAR).unwrap() && left <= i64::try_from(NEAR + ahead / 16 + 2).unwrap());
        }
    }
}
