//! Which members have a vote.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// The members that have a vote.
#[derive(Debug)]
pub(super) struct Distinct {
    pub(super) members: Vec<Vote>,
    /// One member after the other, so that of two that come at once the second is compared with the first.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct Vote {
    pub(super) given: AtomicBool,
    /// It is the same store as another member.
    pub(super) refused: OnceLock<Error>,
}

impl Distinct {
    pub(super) fn new(members: usize) -> Self {
        Self { members: (0..members).map(|_| Vote::default()).collect(), turn: tokio::sync::Mutex::default() }
    }

    pub(super) fn has_vote(&self, member: usize) -> bool {
        self.members[member].given.load(Ordering::Acquire)
    }
}
