//! What `client/sync.rs` gives, over threads that shuttle schedules.

use shuttle::sync::{Condvar, MutexGuard};

/// As `onelock_core::toolkit::Mutex`.
#[derive(Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(data: T) -> Self {
        Self(shuttle::sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// Tells all who wait. As with the real one, a waiter that has looked at [`Notify::told`] before it looks at the state
/// misses nothing.
#[derive(Debug)]
pub(crate) struct Notify {
    told: shuttle::sync::Mutex<u64>,
    changed: Condvar,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self { told: shuttle::sync::Mutex::new(0), changed: Condvar::new() }
    }

    pub(crate) fn notify_waiters(&self) {
        *self.told.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// How often it has told so far.
    pub(crate) fn told(&self) -> u64 {
        *self.told.lock().unwrap()
    }

    /// Waits until it tells once more than `seen`.
    pub(crate) fn wait(&self, seen: u64) {
        let mut told = self.told.lock().unwrap();
        while *told == seen {
            told = self.changed.wait(told).unwrap();
        }
    }
}
