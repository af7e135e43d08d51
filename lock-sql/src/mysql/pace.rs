//! When a client looks next, by what its looks have seen.

use std::time::Duration;

use onelock_core::HolderId;
use tokio::time::Instant;

/// The least pause between two looks.
const SOON: Duration = Duration::from_micros(200);
/// Who is as far behind as that, or further, looks rarest: once in so many times `poll`.
const TURNS: u32 = 8;
/// What one turn is taken to last until one was seen.
const TURN: Duration = Duration::from_millis(1);

/// What one look has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether some line is known to have moved since the look before.
    pub(super) moved: bool,
    /// How many have to leave before the one holds whose turn may be next.
    pub(super) ahead: u32,
    /// Whose entry that is, where one waits alone.
    pub(super) alone: Option<HolderId>,
}

/// How often to look: a lock that was held for long may be held for long yet, so the pause of a client whose turn is next
/// is a part of the time since the last move; who is further behind sleeps through most of what the turns of the
/// others will take.
#[derive(Debug)]
pub(super) struct Pace {
    /// How rarely at most, for each that is ahead.
    poll: Duration,
    /// Between the last look and the next one.
    pub(super) pause: Duration,
    /// When the last move was seen.
    since: Instant,
    /// What the last look saw.
    last: Option<Seen>,
    /// Whether somebody joined since.
    joined: bool,
    turn: Duration,
}

impl Pace {
    pub(super) fn new(poll: Duration) -> Self {
        Self { poll, pause: Duration::ZERO, since: Instant::now(), last: None, joined: false, turn: TURN }
    }

    /// Somebody became the foremost waiter of a name, or one was told: a look is due at once.
    pub(super) fn joined(&mut self) {
        (self.pause, self.joined) = (Duration::ZERO, true);
    }

    /// A look was answered now.
    pub(super) fn seen(&mut self, seen: Seen, now: Instant) {
        // Who waits alone joins anew at each renewal; its line is the same.
        let same = |last: &Seen| last.alone == seen.alone && (seen.alone.is_some() || !self.joined);
        let last = self.last.filter(same);
        if seen.moved || last.is_none_or(|last| last.ahead != seen.ahead) {
            let lasted = now.saturating_duration_since(self.since);
            if let Some(turns @ 1..) = last.and_then(|last| last.ahead.checked_sub(seen.ahead)) {
                self.turn = (self.turn + lasted / turns).min(self.poll * 2) / 2;
            }
            self.since = now;
        }
        (self.last, self.joined) = (Some(seen), false);
        let quiet = now.saturating_duration_since(self.since);
        let turns = seen.ahead.clamp(1, TURNS);
        let others = self.turn.saturating_mul(seen.ahead.saturating_sub(1)) / 4 * 3;
        let pause = if turns == 1 { quiet / 16 } else { others.max(quiet / 4) };
        self.pause = pause.max(SOON).min(self.poll * turns);
    }

    /// A look failed: the next one comes after `most` at the latest, or after `poll` where that is longer.
    pub(super) fn failed(&mut self, most: Duration) {
        self.pause = (self.pause * 2).clamp(self.poll, most.max(self.poll));
    }

    /// The pause between two looks of one request, which goes on only while the turn of one is next.
    pub(super) fn again(&self) -> Duration {
        if self.last.is_some_and(|last| last.ahead <= 1) { self.pause } else { SOON }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(10);

    /// Of several that wait.
    fn seen(ahead: u32) -> Seen {
        Seen { moved: false, ahead, alone: None }
    }

    fn looks(pace: &mut Pace, ahead: u32, total: Duration) -> u32 {
        let mut now = pace.since;
        let end = now + total;
        let mut count = 0;
        while now < end {
            pace.seen(seen(ahead), now);
            now += pace.pause;
            count += 1;
        }
        count
    }

    #[test]
    fn looks_become_rarer_while_nothing_moves() {
        let mut pace = Pace::new(POLL);
        let first = looks(&mut pace, 1, Duration::from_millis(3));
        assert!((10..=20).contains(&first), "{first}");
        looks(&mut pace, 1, Duration::from_secs(1));
        assert_eq!(pace.pause, POLL);
        // One joins: a look at once, and the next ones soon.
        let late = pace.since + Duration::from_secs(1);
        pace.joined();
        assert_eq!(pace.pause, Duration::ZERO);
        pace.seen(seen(1), late);
        assert_eq!((pace.pause, pace.again()), (SOON, SOON));
        pace.seen(seen(1), late + POLL * 8);
        assert_eq!((pace.pause, pace.again()), (POLL / 2, POLL / 2));
    }

    #[test]
    fn who_waits_on_alone_has_not_joined() {
        let [one, other] = [1, 2].map(HolderId::from_u128);
        let alone = |who| Seen { moved: false, ahead: 1, alone: Some(who) };
        let mut pace = Pace::new(POLL);
        let start = pace.since;
        let at = |millis: u64| start + Duration::from_millis(millis);
        pace.seen(alone(one), at(0));
        pace.joined();
        pace.seen(alone(one), at(32));
        assert_eq!(pace.pause, Duration::from_millis(2));
        pace.joined();
        pace.seen(alone(other), at(64));
        assert_eq!(pace.pause, SOON);
    }

    #[test]
    fn who_is_behind_sleeps_for_most_of_the_turns_of_the_others() {
        let mut pace = Pace::new(POLL);
        let start = pace.since;
        let at = |millis: u64| start + Duration::from_millis(millis);
        pace.seen(seen(5), at(0));
        assert_eq!((pace.pause, pace.again()), (TURN * 3, SOON));
        pace.seen(seen(41), at(0));
        assert_eq!(pace.pause, TURN * 30);
        let mut pace = Pace::new(POLL);
        pace.since = start;
        pace.seen(seen(5), at(0));
        // Two turns in six milliseconds: between what was thought and what was seen.
        pace.seen(seen(3), at(6));
        assert_eq!(pace.pause, Duration::from_millis(3));
        // Never more rarely than that, however long a turn was.
        pace.seen(seen(2), at(60_000));
        assert_eq!(pace.pause, POLL / 4 * 3);
        pace.seen(seen(2), at(120_000));
        assert_eq!(pace.pause, POLL * 2);
        pace.seen(seen(200), at(180_000));
        pace.seen(seen(200), at(240_000));
        assert_eq!(pace.pause, POLL * 8);
    }

    #[test]
    fn failures_make_it_rare() {
        let most = Duration::from_millis(500);
        let mut pace = Pace::new(POLL);
        pace.failed(most);
        assert_eq!(pace.pause, POLL);
        for _ in 0..10 {
            pace.failed(most);
        }
        assert_eq!(pace.pause, most);
        let mut rare = Pace::new(most * 2);
        rare.failed(most);
        assert_eq!(rare.pause, most * 2);
    }
}
