//! Acquires that were sent and not answered. The server may carry one out after a release that was sent later over another connection.

use std::time::Duration;

use tokio::time::Instant;

use super::Mutex;
use crate::backend::{Release, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HolderId, HolderMap};

/// Whose acquires were not answered, and until when their entries may yet come: for a store whose requests go over several
/// connections, or over one after the other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock_core::Result<()> {
/// # use std::time::Duration;
/// use onelock_core::toolkit::Unanswered;
/// use onelock_core::{Error, ErrorKind, HolderId, LockName, Mode, Release, Request};
///
/// let unanswered = Unanswered::new(Duration::from_secs(2));
/// # let lease = Duration::from_secs(30);
/// let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, lease);
/// unanswered.acquired(&request, &Err::<(), _>(Error::new(ErrorKind::Timeout, "no answer")));
/// assert!(unanswered.released(request.holder, Ok(Release::NotHeld)).is_err()); // it may yet come
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Unanswered {
    /// How long a server that answers again may take for what it had received before.
    window: Duration,
    until: Mutex<HolderMap<Instant>>,
}

impl Unanswered {
    /// None yet. For so long after a release found nothing its acquire may come: as a rule the time that a request has.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        Self { window, until: Mutex::default() }
    }

    /// Sees the answer to an acquire.
    pub fn acquired<T>(&self, request: &Request, answer: &Result<T>) {
        if answer.as_ref().is_err_and(Error::is_unclear) {
            let (mut all, now) = (self.until.lock(), Instant::now());
            all.retain(|_, until| *until > now);
            all.insert(request.holder, now + request.lease.max(request.waiter_lease) + request.delay);
        }
    }

    /// The answer to a release.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] for a while where there was nothing, which is not definite; and that of the answer.
    pub fn released(&self, holder: HolderId, answer: Result<Release>) -> Result<Release> {
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
