//! Asking all members at once, and what goes on in the background after enough have answered.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use crate::backend::{Backend, Standing, Ticket};
use crate::error::{Error, ErrorKind, Result};

/// The least time the slower members get once enough have answered.
const LINGER: Duration = Duration::from_millis(2);

/// Tasks under way that nobody waits for.
#[derive(Debug, Default)]
pub(super) struct Background {
    tasks: AtomicUsize,
    none: Notify,
    closed: AtomicBool,
}

impl Background {
    /// Refuses more, and gives what is under way up to `limit` to end.
    pub(super) async fn close(&self, limit: Duration) {
        self.closed.store(true, Ordering::Release);
        let idle = async {
            loop {
                let none = self.none.notified();
                if self.tasks.load(Ordering::Acquire) == 0 {
                    return;
                }
                none.await;
            }
        };
        // What is not given back by then ends with its lease.
        let _ = timeout(limit, idle).await;
    }
}

/// Counts one task, also when the runtime drops it unfinished.
struct Task(Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.background.tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.background.none.notify_waiters();
        }
    }
}

impl Shared {
    pub(super) fn open(&self) -> Result<()> {
        if self.background.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this quorum has been closed"));
        }
        Ok(())
    }

    /// Runs `work` to its end in the background.
    pub(super) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.background.tasks.fetch_add(1, Ordering::AcqRel);
        let task = Task(Arc::clone(self));
        self.runtime.spawn(async move {
            work.await;
            drop(task);
        });
    }

    /// Asks every member at once; the answers by member, `None` for those that did not answer in time.
    ///
    /// No call is cut off: a member that is slow answers later, to `late`. Once `enough` is true the others get as much
    /// time again as those took, so that a dead member costs its time-out only where its answer is needed.
    pub(super) async fn ask<T, F>(
        self: &Arc<Self>,
        call: impl Fn(usize, Arc<dyn Backend>) -> Option<F>,
        enough: impl Fn(&[Option<Result<T>>]) -> bool,
        late: impl Fn(usize, Result<T>) + Clone + Send + 'static,
    ) -> Vec<Option<Result<T>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (answer, mut answers) = mpsc::unbounded_channel();
        let mut asked = 0_usize;
        for (i, member) in self.members.iter().enumerate() {
            let Some(call) = call(i, Arc::clone(member)) else { continue };
            asked += 1;
            let (answer, late) = (answer.clone(), late.clone());
            self.spawn(async move {
                if let Err(mpsc::error::SendError((i, unread))) = answer.send((i, call.await)) {
                    late(i, unread);
                }
            });
        }
        drop(answer);
        let mut got: Vec<_> = self.members.iter().map(|_| None).collect();
        let start = Instant::now();
        let mut end = start + self.member_timeout;
        while asked > 0 {
            let Ok(Some((i, said))) = timeout_at(end, answers.recv()).await else { break };
            asked -= 1;
            let before = enough(&got);
            got[i] = Some(said);
            if !before && enough(&got) {
                end = end.min(Instant::now() + start.elapsed().max(LINGER));
            }
        }
        // From here on answers go to `late`; those on their way still count. (Receiving, not trying to: a closed channel
        // waits for a send that has begun, and an answer dropped unread would be an entry nobody gives back.)
        answers.close();
        while let Some((i, said)) = answers.recv().await {
            got[i] = Some(said);
        }
        got
    }

    /// Gives an entry back on one member, until the member gives a definite answer, for at most `lease`: then the entry
    /// has ended there by itself.
    pub(super) fn give_back(self: &Arc<Self>, member: usize, ticket: Ticket, lease: Duration) {
        let backend = Arc::clone(&self.members[member]);
        let until = Instant::now() + lease;
        let shared = Arc::clone(self);
        self.spawn(async move {
            let mut pause = Duration::from_millis(10);
            while let Err(error) = backend.release(&ticket).await {
                let over = shared.background.closed.load(Ordering::Acquire);
                if over || !error.is_retryable() || Instant::now() + pause >= until {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        });
    }
}

/// Whether there may be an entry behind this answer, to be given back.
pub(super) fn may_be_there(answer: &Result<Standing>) -> bool {
    match answer {
        Ok(Standing::Busy(_)) => false,
        Ok(_) => true,
        Err(error) => error.is_unclear(),
    }
}

/// How many answered anything, and the errors of the others.
pub(super) fn tally<T>(answers: &[Option<Result<T>>]) -> (usize, Vec<Error>) {
    let errors = answers.iter().filter_map(|answer| answer.as_ref()?.as_ref().err().cloned()).collect();
    (answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count(), errors)
}
