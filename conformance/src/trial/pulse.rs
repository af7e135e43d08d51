//! When a client could not run: a thread of its own notes when it woke late. And how its runtime is blocked on purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use onelock_core::{BootClock, Clock as _};

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
    let journal = Arc::downgrade(journal);
    std::thread::spawn(move || beat(&journal));
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
        let noted = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            let mut last = BootClock.now();
            loop {
                std::thread::sleep(BEAT);
                let now = BootClock.now();
                let Some(longest) = noted.upgrade() else { return };
                longest.fetch_max(nanos(now) - nanos(last), Ordering::Relaxed);
                last = now;
            }
        });
        Self(longest)
    }

    /// The longest so far.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)).saturating_sub(BEAT)
    }
}

fn beat(journal: &Weak<Journal>) {
    let mut last = BootClock.now();
    loop {
        std::thread::sleep(BEAT);
        let now = BootClock.now();
        let Some(journal) = journal.upgrade() else { return };
        if now.saturating_since(last) > GAP
            && journal.write(&Event::Still { from: nanos(last), to: nanos(now) }).is_err()
        {
            return;
        }
        last = now;
    }
}
