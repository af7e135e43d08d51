//! Asking all members at once, and what goes on in the background after enough have answered.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::shared::Shared;
use crate::backend::{Backend, Release, Request, Standing, Ticket};
use crate::client::tries::Tries;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::model::request::may_have_joined;

/// The least time the slower members get once enough have answered.
const LINGER: Duration = Duration::from_millis(2);

/// What one member said; `None` when it was not asked, or did not answer in time.
pub(super) type Answer<T> = Option<Result<T>>;

impl Shared {
    pub(super) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this quorum has been closed"));
        }
        Ok(())
    }

    /// Runs `work` to its end in the background.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(self.background.counted(work));
    }

    /// Asks every member at once; the answers by member.
    ///
    /// No call is cut off: a member that is slow answers later, to `late`. Once `enough` is true the others get as much
    /// time again as those took, so that a dead member costs its time-out only where its answer is needed.
    pub(super) async fn ask<T, F>(
        self: &Arc<Self>,
        call: impl Fn(usize, Arc<dyn Backend>) -> Option<F>,
        enough: impl Fn(&[Answer<T>]) -> bool,
        late: impl Fn(usize, Result<T>) + Clone + Send + 'static,
    ) -> Vec<Answer<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // `late` goes along with an answer: once that is received, nothing of its call is under way any more.
        let (answer, mut answers) = mpsc::unbounded_channel();
        let mut asked = 0_usize;
        for (i, member) in self.members.iter().enumerate() {
            let Some(call) = call(i, Arc::clone(member)) else { continue };
            asked += 1;
            let (answer, late) = (answer.clone(), late.clone());
            self.spawn(async move {
                if let Err(mpsc::error::SendError((i, unread, late))) = answer.send((i, call.await, late)) {
                    late(i, unread);
                }
            });
        }
        drop(answer);
        let mut got: Vec<_> = self.members.iter().map(|_| None).collect();
        let start = Instant::now();
        let mut end = start + self.member_timeout;
        while asked > 0 {
            let Ok(Some((i, said, _))) = timeout_at(end, answers.recv()).await else { break };
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
        while let Some((i, said, _)) = answers.recv().await {
            got[i] = Some(said);
        }
        got
    }

    /// Asks members for the entry of this request, by calls of [`Backend::acquire`]. A grant that comes late is given back.
    pub(super) async fn ask_for<F>(
        self: &Arc<Self>,
        request: &Arc<Request>,
        call: impl Fn(usize, Arc<dyn Backend>) -> Option<F>,
        enough: impl Fn(&[Answer<Standing>]) -> bool,
    ) -> Vec<Answer<Standing>>
    where
        F: Future<Output = Result<Standing>> + Send + 'static,
    {
        let (asked, removing) = (Arc::clone(request), Arc::new(self.removing(request.holder)));
        let late = move |member, answer: Result<Standing>| {
            if may_have_joined(&answer) {
                removing.shared.give_back(member, asked.ticket(), asked.lease + asked.delay);
            }
        };
        self.ask(call, enough, late).await
    }

    /// Counts a call that may take an entry of this holder id away.
    fn removing(self: &Arc<Self>, holder: HolderId) -> Removing {
        *self.removing.lock().entry(holder).or_default() += 1;
        Removing { shared: Arc::clone(self), holder }
    }

    /// Whether an entry of this holder id may yet be taken away.
    pub(super) fn is_removing(&self, holder: HolderId) -> bool {
        self.removing.lock().contains_key(&holder)
    }

    /// Gives back what members may have granted that failed: [`Shared::ask_for`] gets no later answer of them.
    pub(super) fn give_back_unclear(self: &Arc<Self>, request: &Request, answers: &[Answer<Standing>]) {
        for (member, answer) in answers.iter().enumerate() {
            if matches!(answer, Some(Err(error)) if error.is_unclear()) {
                self.give_back(member, request.ticket(), request.lease + request.delay);
            }
        }
    }

    /// Releases the entries by member, until as many as `enough` were there. A member whose failure a retry may help goes on
    /// being asked in the background.
    pub(super) async fn release(
        self: &Arc<Self>,
        entries: &[Option<Ticket>],
        lease: Duration,
        enough: usize,
    ) -> Vec<Answer<Release>> {
        let call = |i: usize, member: Arc<dyn Backend>| {
            let ticket = entries[i].clone()?;
            let removing = self.removing(ticket.holder);
            Some(async move {
                let answer = member.release(&ticket).await;
                if answer.as_ref().is_err_and(Error::is_retryable) {
                    removing.shared.give_back(i, ticket, lease);
                }
                answer
            })
        };
        self.ask(call, |answers| count(answers, Release::Released) >= enough, |_, _| ()).await
    }

    /// Gives an entry back on one member, until the member gives a definite answer, for at most `lease`: then the entry
    /// has ended there by itself.
    pub(super) fn give_back(self: &Arc<Self>, member: usize, ticket: Ticket, lease: Duration) {
        let backend = Arc::clone(&self.members[member]);
        let removing = self.removing(ticket.holder);
        self.spawn(async move {
            let mut tries = Tries::new(Some(&removing.shared.turns[member]));
            // A failure has nobody to tell: the lease ends the entry.
            loop {
                let answer = backend.release(&ticket).await;
                if removing.shared.open().is_err() || !tries.again(&answer, lease).await {
                    return;
                }
            }
        });
    }
}

/// A call that may take an entry of this holder id away, until dropped.
#[derive(Debug)]
struct Removing {
    shared: Arc<Shared>,
    holder: HolderId,
}

impl Drop for Removing {
    fn drop(&mut self) {
        let mut removing = self.shared.removing.lock();
        if let Some(calls) = removing.get_mut(&self.holder) {
            *calls -= 1;
            if *calls == 0 {
                removing.remove(&self.holder);
            }
        }
    }
}

/// How many answered anything, and the errors of the others.
pub(super) fn tally<T>(answers: &[Answer<T>]) -> (usize, Vec<Error>) {
    let errors = answers.iter().filter_map(|answer| answer.as_ref()?.as_ref().err().cloned()).collect();
    (answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count(), errors)
}

/// How many gave this answer.
pub(super) fn count<T: PartialEq>(answers: &[Answer<T>], this: T) -> usize {
    answers.iter().filter(|answer| matches!(answer, Some(Ok(said)) if *said == this)).count()
}
