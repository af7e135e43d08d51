//! The one clock of a client: it decides when a lease has run out, whatever the store says later.

use std::any::Any;
use std::fmt::Debug;
use std::ops::{Add, Sub};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// A moment on a [`Clock`]: time since that clock's own origin. Moments of two clocks are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
pub trait Clock: Any + Debug + Send + Sync {
    /// The moment now.
    fn now(&self) -> Timestamp;

    /// Whether moments of `other` can be compared with those of this clock. Unless a clock says otherwise, only its own can.
    fn same(&self, other: &dyn Clock) -> bool {
        std::ptr::addr_eq(std::ptr::from_ref(self), std::ptr::from_ref(other))
    }
}

/// Boot time: the operating system's monotonic clock that also counts suspend. The default.
///
/// On Windows it counts from its first use in the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    #[cfg(unix)]
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

    /// The performance counter, which `Instant` reads, counts the time that Windows sleeps.
    #[cfg(not(unix))]
    fn now(&self) -> Timestamp {
        static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Timestamp(BEGAN.get_or_init(std::time::Instant::now).elapsed())
    }

    fn same(&self, other: &dyn Clock) -> bool {
        (other as &dyn Any).is::<Self>()
    }
}

/// Tokio's clock, which a test can pause: for stores inside this process and for simulations. It stands still while the
/// machine is suspended, so it must not decide about leases that a server keeps.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    runtime: Option<Id>,
    paused: bool,
}

impl TokioClock {
    /// The clock of the current runtime; the system's monotonic clock outside of one.
    #[must_use]
    pub fn new() -> Self {
        Self { runtime: Handle::try_current().ok().map(|runtime| runtime.id()), paused: is_paused() }
    }

    /// The clock of the current runtime if that is paused now.
    #[must_use]
    pub fn paused() -> Option<Self> {
        Some(Self::new()).filter(|clock| clock.paused)
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        // One origin for all, so that moments compare. Some time back, because a runtime that is paused may have stopped
        // before this is first asked.
        static ORIGIN: LazyLock<Instant> = LazyLock::new(|| {
            let now = Instant::now();
            now.checked_sub(Duration::from_secs(24 * 3600)).unwrap_or(now)
        });
        Timestamp(Instant::now().saturating_duration_since(*ORIGIN))
    }

    /// Every paused runtime has a time of its own.
    fn same(&self, other: &dyn Clock) -> bool {
        (other as &dyn Any)
            .downcast_ref::<Self>()
            .is_some_and(|other| self.runtime == other.runtime || !(self.paused || other.paused))
    }
}

/// Whether the current runtime is paused. Tokio does not tell, but its time then stands still while the system's goes on.
fn is_paused() -> bool {
    let (paused_at, began) = (Instant::now(), std::time::Instant::now());
    while std::time::Instant::now() == began {
        std::hint::spin_loop();
    }
    Instant::now() == paused_at
}

/// The longest single sleep towards a moment. Timers stand still while the machine is suspended and the clock does
/// not, so a sleeper looks at the clock at least this often.
const LOOK: Duration = Duration::from_secs(1);

/// Sleeps until `clock` reaches `until`; yields once at least, so that a loop around it lets other tasks run.
///
/// # Cancel safety
/// Safe: it holds nothing.
pub async fn sleep_until(clock: &Arc<dyn Clock>, until: Timestamp) {
    if until <= clock.now() {
        return tokio::task::yield_now().await;
    }
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

    #[tokio::test]
    async fn a_clock_knows_whose_moments_compare() {
        let (boot, tokio): (&dyn Clock, &dyn Clock) = (&BootClock, &TokioClock::new());
        assert!(boot.same(&BootClock) && tokio.same(&TokioClock::new()));
        assert!(!boot.same(tokio) && !tokio.same(boot));
        let another = std::thread::spawn(|| {
            let paused =
                tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build();
            paused.unwrap().block_on(async {
                let first = TokioClock::new();
                tokio::time::advance(Duration::from_secs(1)).await;
                assert!(first.paused && first.same(&TokioClock::new()));
                first
            })
        });
        assert!(!tokio.same(&another.join().unwrap()), "a paused runtime has a time of its own");
        assert!(!TokioClock::new().paused);
        tokio::time::pause();
        assert!(tokio.same(&TokioClock::new()), "paused later, and yet the same");
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
