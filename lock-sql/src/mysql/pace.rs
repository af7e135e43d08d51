//! When a client looks next, by what its looks have seen.

use std::time::Duration;

use tokio::time::Instant;

/// The least pause between two looks.
const SOON: Duration = Duration::from_micros(200);
/// Of how many the next look of a waiter far behind waits for the turns, at most.
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
    /// What the last look saw; `None` before the first one since somebody joined.
    ahead: Option<u32>,
    turn: Duration,
}

impl Pace {
    pub(super) fn new(poll: Duration) -> Self {
        Self { poll, pause: Duration::ZERO, since: Instant::now(), ahead: None, turn: TURN }
    }

    /// Somebody became the foremost waiter of a name, or one was told: a look is due at once.
    pub(super) fn joined(&mut self) {
        (self.pause, self.ahead) = (Duration::ZERO, None);
    }

    /// A look was answered now.
    pub(super) fn seen(&mut self, seen: Seen, now: Instant) {
        if seen.moved || self.ahead != Some(seen.ahead) {
            let lasted = now.saturating_duration_since(self.since);
            if let Some(turns) =
                self.ahead.and_then(|before| before.checked_sub(seen.ahead)).filter(|t| *t > 0)
            {
                self.turn = (self.turn + lasted / turns).min(self.poll * 2) / 2;
            }
            (self.ahead, self.since) = (Some(seen.ahead), now);
        }
        let quiet = now.saturating_duration_since(self.since);
        let turns = seen.ahead.clamp(1, TURNS);
        let pause = if turns == 1 { quiet / 16 } else { (self.turn * (turns - 1) / 4 * 3).max(quiet / 4) };
        self.pause = pause.max(SOON).min(self.poll * turns);
    }

    /// A look failed: the next one comes after `most` at the latest, or after `poll` where that is longer.
    pub(super) fn failed(&mut self, most: Duration) {
        self.pause = (self.pause * 2).clamp(self.poll, most.max(self.poll));
    }

    /// Whether the turn of one may be next, so that its look goes on at the server.
    pub(super) fn is_next(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(10);

    fn looks(pace: &mut Pace, ahead: u32, total: Duration) -> u32 {
        let mut now = pace.since;
        let end = now + total;
        let mut count = 0;
        while now < end {
            pace.seen(Seen { moved: false, ahead }, now);
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
        // It was the same line all along.
        pace.joined();
        assert_eq!((pace.pause, pace.is_next()), (Duration::ZERO, false));
        pace.seen(Seen { moved: false, ahead: 0 }, Instant::now());
        assert_eq!((pace.pause, pace.is_next()), (SOON, true));
    }

    #[test]
    fn who_is_behind_sleeps_for_most_of_the_turns_of_the_others() {
        let mut pace = Pace::new(POLL);
        let start = pace.since;
        let at = |millis: u64| start + Duration::from_millis(millis);
        pace.seen(Seen { moved: false, ahead: 5 }, at(0));
        assert_eq!((pace.pause, pace.is_next()), (TURN * 3, false));
        // Two turns in six milliseconds: between what was thought and what was seen.
        pace.seen(Seen { moved: false, ahead: 3 }, at(6));
        assert_eq!(pace.pause, Duration::from_millis(3));
        // Never more rarely than that, however long a turn was.
        pace.seen(Seen { moved: false, ahead: 2 }, at(60_000));
        assert_eq!(pace.pause, POLL / 4 * 3);
        pace.seen(Seen { moved: false, ahead: 2 }, at(120_000));
        assert_eq!(pace.pause, POLL * 2);
        pace.seen(Seen { moved: false, ahead: 200 }, at(180_000));
        pace.seen(Seen { moved: false, ahead: 200 }, at(240_000));
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
