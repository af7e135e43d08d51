//! Joins take turns, those of one line more than others.
//!
//! The store answers the joins of one line one after the other: what waits there too long is given up and asked again, which makes a
//! crowd larger. Joins of many lines go beside each other.

use std::hash::{BuildHasher, RandomState};

use onelock_core::LockName;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// How many joins of one line a client sends at once, and of all lines of a lane.
const JOINS: usize = 32;
/// Each line has a lane, by its name.
const LANES: usize = 32;

#[derive(Debug)]
pub(crate) struct Crowds {
    lanes: [Semaphore; LANES],
    hasher: RandomState,
}

impl Crowds {
    pub(crate) fn new() -> Self {
        Self { lanes: [const { Semaphore::const_new(JOINS) }; LANES], hasher: RandomState::new() }
    }

    /// Waits for a turn to join the line of this name; kept while the join is under way.
    pub(crate) async fn turn(&self, name: &LockName) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.lanes[self.lane(name)].acquire().await
    }

    fn lane(&self, name: &LockName) -> usize {
        // The remainder is less than the number of lanes.
        usize::try_from(self.hasher.hash_one(name.as_str()) % LANES as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_line_takes_turns_and_holds_up_few_others() {
        let name = |name: String| LockName::new(name).unwrap();
        let (crowds, one) = (Crowds::new(), name("one".into()));
        let turn = |name: &LockName| crowds.turn(name).now_or_never().map(Result::unwrap);
        let crowd: Vec<_> = (0..JOINS).map(|_| turn(&one).unwrap()).collect();
        assert!(turn(&one).is_none());
        let others: Vec<_> = (0..512).map(|i| name(format!("other-{i}"))).collect();
        let (behind, beside): (Vec<_>, Vec<_>) =
            others.iter().partition(|other| crowds.lane(other) == crowds.lane(&one));
        assert!(beside.len() > behind.len() * 8, "{} of 512 stand behind one line", behind.len());
        for other in beside {
            assert!(turn(other).is_some());
        }
        drop(crowd);
        assert!(turn(&one).is_some());
    }
}
