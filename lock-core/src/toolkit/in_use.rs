//! A hint for stores whose join on a free name and on a name in use differ: what the last join has found.

use std::collections::HashSet;

use super::Mutex;
use crate::name::LockName;

/// How many names are remembered.
const NAMES: usize = 4_096;

/// The names that were in use when a client joined them last. It forgets all when they become too many: a hint that is wrong
/// costs a request.
///
/// ```
/// use onelock_core::LockName;
/// use onelock_core::toolkit::in_use::InUse;
///
/// let (names, name) = (InUse::default(), LockName::new("a")?);
/// names.note(&name, true);
/// assert!(names.has(&name));
/// names.note(&name, false);
/// assert!(!names.has(&name));
/// # Ok::<(), onelock_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct InUse(Mutex<HashSet<LockName>>);

impl InUse {
    /// Notes what a join has found.
    pub fn note(&self, name: &LockName, in_use: bool) {
        let mut names = self.0.lock();
        if !in_use {
            names.remove(name);
        } else if !names.contains(name) {
            if names.len() >= NAMES {
                names.clear();
            }
            names.insert(name.clone());
        }
    }

    /// Whether the name was in use when it was joined last.
    #[must_use]
    pub fn has(&self, name: &LockName) -> bool {
        self.0.lock().contains(name)
    }
}
