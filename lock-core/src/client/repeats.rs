//! Releases that are repeated until the store gives a definite answer.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// How many releases a client repeats at the same time. Every failed acquire leaves one: without a limit, a store that
/// is slower than its request timeout is asked for more the slower it is, and does not recover.
const AT_ONCE: usize = 8;

/// The releases of a client, or of a member of a quorum, that are repeated now.
#[derive(Debug)]
pub(crate) struct Repeats(Semaphore);

impl Default for Repeats {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Repeats {
    /// The tries of one release, the first of which waits for no other.
    pub(crate) fn begin(&self) -> Tries<'_> {
        Tries { repeats: &self.0, turn: None, failed: None, pause: Duration::from_millis(10) }
    }
}

pub(crate) struct Tries<'a> {
    repeats: &'a Semaphore,
    /// Of the try that is under way, unless that is the first.
    turn: Option<SemaphorePermit<'a>>,
    /// When the first one failed.
    failed: Option<Instant>,
    pause: Duration,
}

impl Tries<'_> {
    /// Waits for the time of the next try; false where `answer` is definite, or `limit` is over since the first failure.
    pub(crate) async fn again<T>(&mut self, answer: &Result<T>, limit: Duration) -> bool {
        self.turn = None;
        let failed = *self.failed.get_or_insert_with(Instant::now);
        if !answer.as_ref().is_err_and(Error::is_retryable) || failed.elapsed() + self.pause >= limit {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        self.turn = self.repeats.acquire().await.ok();
        failed.elapsed() < limit
    }
}
