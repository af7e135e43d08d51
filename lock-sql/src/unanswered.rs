//! Acquires that were sent and not answered. The server may carry one out after a release that was sent later over another connection.

use std::time::Duration;

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, HolderId, HolderMap, Release, Request, Result, Standing};
use tokio::time::Instant;

/// Whose acquires were not answered, and until when their entries may yet come.
pub(crate) struct Unanswered {
    /// How long a server that answers again may take for what it had received before.
    window: Duration,
    until: Mutex<HolderMap<Instant>>,
}

impl Unanswered {
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, until: Mutex::default() }
    }

    /// Sees the answer to an acquire.
    pub(crate) fn acquired(&self, request: &Request, answer: &Result<Standing>) {
        if answer.as_ref().is_err_and(Error::is_unclear) {
            let (mut all, now) = (self.until.lock(), Instant::now());
            all.retain(|_, until| *until > now);
            all.insert(request.holder, now + request.lease.max(request.waiter_lease) + request.delay);
        }
    }

    /// The answer to a release: for a while it is not definite that there was nothing.
    pub(crate) fn released(&self, holder: HolderId, answer: Result<Release>) -> Result<Release> {
        let (mut all, now) = (self.until.lock(), Instant::now());
        if let (Ok(Release::NotHeld), Some(until)) = (&answer, all.get_mut(&holder)) {
            *until = (*until).min(now + self.window);
            if *until > now {
                let text = "an acquire of this entry was not answered, and the server may still carry it out";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
        if answer.is_ok() {
            all.remove(&holder);
        }
        answer
    }
}
