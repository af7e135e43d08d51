//! A mutex without poison.

use std::sync::{MutexGuard, PoisonError};

/// A [`std::sync::Mutex`] that is locked also after somebody has panicked with it: for data that every change leaves whole, so that a
/// panic in one task takes nothing from the others.
///
/// ```
/// use onelock_core::toolkit::Mutex;
///
/// let names = Mutex::new(vec!["a"]);
/// names.lock().push("b");
/// assert_eq!(*names.lock(), ["a", "b"]);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Over this.
    #[must_use]
    pub const fn new(data: T) -> Self {
        Self(std::sync::Mutex::new(data))
    }

    /// Waits until nobody else has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_takes_it_from_nobody() {
        let shared = Mutex::new(1);
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut held = shared.lock();
            *held += 1;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(*shared.lock(), 2);
    }
}
