//! Something of the application's in a configuration.

use std::fmt;
use std::sync::Arc;

/// A pool or a client of the application's, in a configuration that can be compared and printed. Two are equal when one
/// is a clone of the other; `Debug` shows nothing of it, for it may hold a password.
///
/// ```
/// use onelock_core::toolkit::Given;
///
/// let given = Given::new("postgres://app:hunter2@h");
/// assert_eq!(given.get().len(), 24);
/// assert_eq!(format!("{given:?}"), "(the application's)");
/// assert!(given == given.clone() && given != Given::new("postgres://app:hunter2@h"));
/// ```
pub struct Given<T>(Arc<T>);

impl<T> Given<T> {
    /// Takes it in.
    #[must_use]
    pub fn new(thing: T) -> Self {
        Self(Arc::new(thing))
    }

    /// The thing itself.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Given<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> PartialEq for Given<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Given<T> {}

impl<T> fmt::Debug for Given<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(the application's)")
    }
}
