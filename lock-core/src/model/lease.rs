//! Leases: what may be asked, how it is rounded, and how long the client may believe in one.

use std::time::Duration;

use crate::model::clock::Timestamp;
use crate::model::error::{Error, ErrorKind, Result};

/// The shortest lease anybody may ask for: below it the margins leave nothing.
pub const MIN_LEASE: Duration = Duration::from_millis(10);

/// Rounds a time up to a whole multiple of the store's step; used for lock-delays as well.
#[must_use]
pub fn round_up(time: Duration, step: Duration) -> Duration {
    let step = step.as_nanos().max(1);
    let nanos = time.as_nanos().div_ceil(step) * step;
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

/// Refuses a lease that is not from [`MIN_LEASE`] to `longest`.
pub(crate) fn check(lease: Duration, longest: Duration) -> Result<()> {
    let human = humantime::format_duration;
    let text = if lease < MIN_LEASE {
        format!("a lease of {} is shorter than {}", human(lease), human(MIN_LEASE))
    } else if lease > longest {
        format!("a lease of {} is longer than {}", human(lease), human(longest))
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidLease, text))
}

/// How much less than the lease the client believes in: a share for clocks that run at different rates, and the
/// store's granularity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    rate: f64,
    granularity: Duration,
}

impl Margin {
    /// A margin of `rate` of the lease plus `granularity`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] unless `rate` is from 0 to 0.5.
    pub fn new(rate: f64, granularity: Duration) -> Result<Self> {
        if (0.0..=0.5).contains(&rate) {
            Ok(Self { rate, granularity })
        } else {
            let text = format!("the margin is a share from 0 to 0.5, not {rate}");
            Err(Error::new(ErrorKind::InvalidConfig, text))
        }
    }

    /// Until when the client may believe in a lease that was asked for at `sent`: the moment *before* the request went
    /// out, because the store may have started the lease at any time after it.
    #[must_use]
    pub fn deadline(&self, sent: Timestamp, lease: Duration) -> Timestamp {
        // The share is at most a half, so it is a time whatever the lease is; `lease * 1.0` can be rounded to more than the
        // longest.
        sent + lease.saturating_sub(lease.mul_f64(self.rate)).saturating_sub(self.granularity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_deadline_counts_from_before_the_request() {
        let margin = Margin::new(0.10, MS(2)).unwrap();
        let sent = Timestamp::from_origin(Duration::from_secs(100));
        assert_eq!(margin.deadline(sent, MS(1_000)), sent + MS(898));
        assert_eq!(margin.deadline(sent, MS(1)), sent);
        for rate in [0.0, 0.5] {
            let end = Margin::new(rate, MS(2)).unwrap().deadline(sent, Duration::MAX);
            assert!(end > sent + Duration::MAX / 3, "the longest lease that a store can give");
        }
        for bad in [-0.1, 0.6, f64::NAN, f64::INFINITY] {
            assert!(Margin::new(bad, MS(2)).is_err());
        }
    }
}
