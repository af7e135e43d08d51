//! How an acquisition asks again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How `acquire` asks again: after "busy" when it does not wait in the line, and after errors that say a retry helps.
///
/// Delays double from `delay` up to `max_delay`, each shortened by a random part of up to a half so that contenders
/// spread out.
///
/// ```
/// use std::time::Duration;
/// use onelock::Retry;
///
/// let retry = Retry::default().attempts(5).delay(Duration::from_millis(20), Duration::from_secs(1));
/// assert_eq!(retry.attempts, Some(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
#[must_use]
pub struct Retry {
    /// How often an unfair acquisition asks before it gives up; no limit when `None`.
    pub attempts: Option<u32>,
    /// How many failed calls in a row are tolerated. Unless it is none, any number is until the store has not answered for
    /// the lease of a waiter: calls to a store that is away for a moment fail one soon after the other. It has answered, too,
    /// where a call only failed to come to its turn behind others of this client ([`Error::queued`](crate::Error::queued)).
    pub errors: u32,
    /// The first delay.
    #[serde(with = "crate::toolkit::human_time")]
    pub delay: Duration,
    /// The longest delay.
    #[serde(with = "crate::toolkit::human_time")]
    pub max_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: None,
            errors: 3,
            delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(250),
        }
    }
}

impl Retry {
    /// At most this many attempts of an unfair acquisition.
    ///
    /// ```
    /// use onelock::Retry;
    ///
    /// assert_eq!(Retry::default().attempts(3).attempts, Some(3));
    /// ```
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// This many failed calls in a row are tolerated; see [`Retry::errors`](field@Retry::errors).
    ///
    /// ```
    /// use onelock::Retry;
    ///
    /// let at_once = Retry::default().errors(0); // the first failure is the answer
    /// assert_eq!(at_once.errors, 0);
    /// ```
    pub fn errors(mut self, errors: u32) -> Self {
        self.errors = errors;
        self
    }

    /// The first and the longest delay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use onelock::Retry;
    ///
    /// let slow = Retry::default().delay(Duration::from_millis(100), Duration::from_secs(5));
    /// assert_eq!(slow.max_delay, Duration::from_secs(5));
    /// ```
    pub fn delay(mut self, first: Duration, longest: Duration) -> Self {
        (self.delay, self.max_delay) = (first, longest);
        self
    }

    /// The delay after the `count`-th try, with `random` from all of `u64`.
    pub(crate) fn pause(&self, count: u32, random: u64) -> Duration {
        let doubled = 1_u32.checked_shl(count.saturating_sub(1)).unwrap_or(u32::MAX);
        let full = self.delay.saturating_mul(doubled).min(self.max_delay).max(Duration::from_millis(1));
        // Not `full * 1.0`, which for the longest time of all is too long for a time.
        full - full.mul_f64(0.5 * (random as f64 / u64::MAX as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let retry = Retry::default().delay(Duration::from_millis(10), Duration::from_millis(50));
        let pauses: Vec<_> = (1..6).map(|n| retry.pause(n, 0).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 50, 50]);
        assert_eq!(retry.pause(1, u64::MAX), Duration::from_millis(5));
        assert_eq!(retry.pause(u32::MAX, 0), Duration::from_millis(50));
        let for_ever = retry.delay(Duration::MAX, Duration::MAX);
        assert!(for_ever.pause(1, 0) > for_ever.pause(1, u64::MAX));
    }
}
