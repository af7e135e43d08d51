//! Acquires that were sent and not answered. The server may carry one out after a release that was sent later over another connection.

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, HolderId, HolderMap, Release, Request, Result, Standing};
use tokio::time::Instant;

/// Whose acquires were not answered, and until when the entries that they may yet make matter.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<HolderMap<Instant>>);

impl Unanswered {
    /// Sees the answer to an acquire.
    pub(crate) fn acquired(&self, request: &Request, answer: &Result<Standing>) {
        if answer.as_ref().is_err_and(Error::is_unclear) {
            let (mut all, now) = (self.0.lock(), Instant::now());
            all.retain(|_, until| *until > now);
            all.insert(request.holder, now + request.lease.max(request.waiter_lease) + request.delay);
        }
    }

    /// The answer to a release: that there was nothing is not definite where an acquire of this holder may still be under way.
    pub(crate) fn released(&self, holder: HolderId, answer: Result<Release>) -> Result<Release> {
        let mut all = self.0.lock();
        let is_late = all.get(&holder).is_some_and(|until| *until > Instant::now());
        if is_late && matches!(answer, Ok(Release::NotHeld)) {
            let text = "an acquire of this entry was not answered, and the server may still carry it out";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if answer.is_ok() {
            all.remove(&holder);
        }
        answer
    }
}
