//! The one clock of a client: it decides when a lease has run out, whatever the store says later.

use std::fmt::Debug;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

/// A moment on a [`Clock`]: time since that clock's own origin. Moments of two clocks are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// The moment this long after the clock's origin.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Time since the clock's origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Time from `earlier` until this moment; zero when it is not earlier.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

/// A clock that never goes back and, in production, runs on while the machine is suspended.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The moment now.
    fn now(&self) -> Timestamp;
}

/// Boot time: the operating system's monotonic clock that also counts suspend. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // On macOS the monotonic clock itself runs through suspend.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(ID);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Timestamp(Duration::new(secs, nanos))
    }
}

/// Tokio's clock, which a test can pause: for the memory store and for simulations.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.origin.elapsed())
    }
}

/// The longest single sleep towards a moment. Timers stand still while the machine is suspended and the clock does
/// not, so a sleeper looks at the clock at least this often.
const LOOK: Duration = Duration::from_secs(1);

/// Sleeps until `clock` reaches `until`.
///
/// # Cancel safety
/// Safe: it holds nothing.
pub async fn sleep_until(clock: &Arc<dyn Clock>, until: Timestamp) {
    loop {
        let left = until.saturating_since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_goes_forward() {
        let a = BootClock.now();
        let b = BootClock.now();
        assert!(b >= a && a.since_origin() > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_on_the_injected_clock() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let until = clock.now() + Duration::from_secs(10);
        sleep_until(&clock, until).await;
        assert!(clock.now() >= until);
        assert!(clock.now() < until + Duration::from_millis(10));
    }
}
