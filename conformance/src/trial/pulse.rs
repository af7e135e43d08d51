//! When a client could not run: a thread of its own notes when it woke late. And how its runtime is blocked on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onelock_core::{BootClock, Clock as _, Timestamp};

use super::event::{Event, Journal};
use crate::history::nanos;

/// How many threads the runtime of a client has.
pub(super) const THREADS: usize = 2;
/// How often the thread wakes.
const BEAT: Duration = Duration::from_millis(10);
/// Two beats that are further apart than this are noted.
const GAP: Duration = Duration::from_millis(30);

/// Notes into `journal` when this process did not run, as long as somebody else keeps the journal.
///
/// # Panics
/// When the process can have no more threads.
pub(super) fn watch(journal: &Arc<Journal>) {
    beat(journal, |journal, last, now| {
        let still = now.saturating_since(last) > GAP;
        !still || journal.write(&Event::Still { from: nanos(last), to: nanos(now) }).is_ok()
    });
}

/// Blocks every thread of a runtime of [`THREADS`] for `time`, and notes it. Returns at once.
pub(super) fn block(journal: &Arc<Journal>, time: Duration) {
    let (from, journal) = (nanos(BootClock.now()), Arc::clone(journal));
    let sleeps = [(); THREADS].map(|()| tokio::spawn(async move { std::thread::sleep(time) }));
    tokio::spawn(async move {
        for sleep in sleeps {
            let _ = sleep.await;
        }
        // A journal that cannot be written ends the client elsewhere.
        let _ = journal.write(&Event::Still { from, to: nanos(BootClock.now()) });
    });
}

/// The gaps in which this process did not run, until dropped.
#[derive(Debug)]
pub struct Gaps(Arc<AtomicU64>);

impl Gaps {
    /// Watches from now on.
    ///
    /// # Panics
    /// When the process can have no more threads.
    #[must_use]
    pub fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        beat(&longest, |longest: &AtomicU64, last, now| {
            longest.fetch_max(nanos(now) - nanos(last), Ordering::Relaxed);
            true
        });
        Self(longest)
    }

    /// The longest so far.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)).saturating_sub(BEAT)
    }
}

/// Calls `note` at every beat with the moment of the one before and its own, as long as somebody else has `kept` and it says
/// so.
fn beat<T: Send + Sync + 'static>(
    kept: &Arc<T>,
    note: impl Fn(&T, Timestamp, Timestamp) -> bool + Send + 'static,
) {
    let kept = Arc::downgrade(kept);
    std::thread::spawn(move || {
        let mut last = BootClock.now();
        loop {
            std::thread::sleep(BEAT);
            let now = BootClock.now();
            if !kept.upgrade().is_some_and(|kept| note(&kept, last, now)) {
                return;
            }
            last = now;
        }
    });
}
