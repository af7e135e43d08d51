//! Releases that are repeated until the store gives a definite answer.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};

/// How many releases of what failed acquires may have left are repeated at the same time. Without a limit, a store that is
/// slower than its request timeout is asked for more the slower it is, and does not recover.
const AT_ONCE: usize = 8;

/// The turns of such releases, of a client or of a member of a quorum.
pub(crate) fn turns() -> Semaphore {
    Semaphore::new(AT_ONCE)
}

/// The tries of one release.
pub(crate) struct Tries<'a> {
    turns: Option<&'a Semaphore>,
    /// Of the try that is under way, unless that is the first.
    turn: Option<SemaphorePermit<'a>>,
    /// When the first one failed.
    failed: Option<Instant>,
    pause: Duration,
}

impl<'a> Tries<'a> {
    /// The first try waits for no other; the later ones take `turns`, which a caller that may stop polling must not.
    pub(crate) fn new(turns: Option<&'a Semaphore>) -> Self {
        Self { turns, turn: None, failed: None, pause: Duration::from_millis(10) }
    }

    /// Waits for the time of the next try; false where `answer` is definite, or `limit` is over since the first failure.
    pub(crate) async fn again<T>(&mut self, answer: &Result<T>, limit: Duration) -> bool {
        self.turn = None;
        let failed = *self.failed.get_or_insert_with(Instant::now);
        if !answer.as_ref().is_err_and(Error::is_retryable) || failed.elapsed() + self.pause >= limit {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        if let Some(turns) = self.turns {
            let turn = timeout(limit.saturating_sub(failed.elapsed()), turns.acquire()).await;
            self.turn = turn.ok().and_then(|turn| turn.ok());
        }
        failed.elapsed() < limit
    }
}
