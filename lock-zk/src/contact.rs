//! Since when the leader must know that a session lives, from the beats that it has answered. [`session`](crate::session)
//! says why they count and nothing else does.

use std::collections::VecDeque;
use std::time::Duration;

use onelock_core::Timestamp;

/// The part of a session's timeout that lies between two beats is a half of this: see [`capacity`].
pub(crate) const BEATS: u32 = 10;

/// How many beats are remembered: a write may be answered after later ones.
const KEPT: usize = 64;

/// How much of a session's timeout is a lease: without the time between three beats, the tick and a quarter after which
/// one counts, and the rest of two ticks for everything on the way.
pub(crate) fn capacity(timeout: Duration, tick: Duration) -> Duration {
    (timeout - timeout / BEATS).saturating_sub(tick * 2)
}

/// The timeout to ask for, so that a session has this capacity: in steps of at most an eighth, so that many different
/// leases share few sessions.
pub(crate) fn timeout_for(need: Duration, tick: Duration) -> Duration {
    let millis = (need + tick * 2).as_millis() * u128::from(BEATS) / u128::from(BEATS - 1) + 2;
    let step = ((millis.next_power_of_two() / 2) / 8).max(10);
    let millis = millis.div_ceil(step) * step;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The last beats of a session that have been answered.
pub(crate) struct Contact {
    opened: Timestamp,
    tick: Duration,
    /// In the order of their answers.
    beats: VecDeque<Beat>,
}

#[derive(Clone, Copy)]
pub(crate) struct Beat {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
}

impl Contact {
    /// The leader itself begins a session, so its time begins no earlier than when that was asked for.
    pub(crate) fn new(opened: Timestamp, tick: Duration) -> Self {
        Self { opened, tick, beats: VecDeque::new() }
    }

    pub(crate) fn beat(&mut self, beat: Beat) {
        // A few in a tick are enough, and the newest: after a standstill many are answered at once, and that one proves most.
        let mut latest = self.beats.iter().rev().map(|beat| beat.answered);
        if let (Some(last), Some(before)) = (latest.next(), latest.next())
            && last < before + self.tick / 8
        {
            self.beats.pop_back();
        }
        self.beats.push_back(beat);
        if self.beats.len() > KEPT {
            self.beats.pop_front();
        }
    }

    /// When the session lived for certain, as a write proves that was sent at `at` and committed.
    pub(crate) fn alive(&self, at: Timestamp) -> Timestamp {
        let latest = || self.beats.iter().rev();
        let proof = latest().find(|beat| beat.answered + self.tick / 4 <= at);
        let proven = proof.and_then(|proof| latest().find(|beat| beat.answered + self.tick <= proof.sent));
        proven.map_or(self.opened, |beat| beat.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_session_carries_the_lease_it_was_asked_for() {
        for tick in [MS(200), MS(2_000)] {
            for need in [1, 10, 400, 1_000, 1_234, 4_000, 30_000, 120_000, 3_600_000] {
                let timeout = timeout_for(MS(need), tick);
                assert!(capacity(timeout, tick) >= MS(need), "{need} {timeout:?}");
                let least = (MS(need) + tick * 2).as_secs_f64() / 0.9;
                assert!(timeout.as_secs_f64() <= least * 1.13 + 0.02, "{need}: {timeout:?} for {least}");
            }
        }
    }

    #[test]
    fn few_classes_serve_all_leases() {
        let classes: std::collections::BTreeSet<_> =
            (1..=36_000).map(|i| timeout_for(MS(i * 100), MS(2_000))).collect();
        assert!(classes.len() <= 90, "{}", classes.len());
    }

    #[test]
    fn a_beat_counts_when_the_leader_has_answered_one_a_tick_later() {
        let at = |ms| Timestamp::from_origin(MS(ms));
        let beat = |sent, answered| Beat { sent: at(sent), answered: at(answered) };
        let mut contact = Contact::new(at(0), MS(200));
        contact.beat(beat(1_000, 1_010));
        contact.beat(beat(1_209, 1_220));
        assert_eq!(contact.alive(at(1_999)), at(0), "sent too soon after the first");
        contact.beat(beat(1_240, 1_250));
        assert_eq!(contact.alive(at(1_299)), at(0), "a write that was sent too soon");
        assert_eq!(contact.alive(at(1_300)), at(1_000));
        // The leader is stopped, and goes on at 5000.
        contact.beat(beat(1_500, 5_000));
        contact.beat(beat(4_900, 5_000));
        assert_eq!(contact.alive(at(4_999)), at(1_000), "a write that waited for the leader");
        assert!(contact.alive(at(5_049)) <= at(1_000));
        for i in 0..10_000 {
            contact.beat(beat(6_000 + i, 6_001 + i));
        }
        assert!(contact.beats.len() <= KEPT);
        let alive = contact.alive(at(16_000));
        assert!(alive >= at(15_600) && alive <= at(15_750), "{alive:?}");
        assert_eq!(contact.alive(at(3_000)), at(0), "forgotten long ago: it lived when it was opened");
    }
}
