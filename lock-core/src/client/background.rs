//! How much a client has under way: acquires, releases in the background, and calls whose caller went away.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What is under way of a client or a quorum.
#[derive(Debug, Default)]
pub(crate) struct Background(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    pending: AtomicUsize,
    none: Notify,
}

impl Background {
    pub(super) fn count(&self) -> usize {
        self.0.pending.load(Ordering::Acquire)
    }

    /// Counts one more.
    pub(crate) fn begin(&self) -> Pending {
        self.0.pending.fetch_add(1, Ordering::AcqRel);
        Pending(Arc::clone(&self.0))
    }

    /// This work, which is counted from now on.
    pub(crate) fn counted<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let pending = self.begin();
        async move {
            let answer = work.await;
            drop(pending);
            answer
        }
    }

    /// Ends when nothing is pending.
    pub(crate) async fn settled(&self) {
        loop {
            let none = self.0.none.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

/// One release or call under way, or about to be; counted until dropped, even when the runtime drops it unfinished.
pub(crate) struct Pending(Arc<Count>);

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
