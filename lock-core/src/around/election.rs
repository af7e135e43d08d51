//! Leader election: one of many candidates works, and the next one begins only after that work has ended.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use tokio::sync::watch;

use crate::around::progress::ask_every;
use crate::client::Locks;
use crate::client::acquire::{Handle, until_next};
use crate::client::guard::{Guard, LossReason};
use crate::client::lock::Lock;
use crate::error::{ErrorKind, Result};
use crate::token::FencingToken;
use crate::toolkit::Given;

/// What [`Election::on_failure`] is called with.
type OnFailure = Given<Box<dyn Fn(&dyn fmt::Display) + Send + Sync>>;

/// A name for which candidates stand; the holder of its lock leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # use onelock::{FencingToken, Result};
/// # let clock = std::sync::Arc::new(onelock::BootClock);
/// # let store = std::sync::Arc::new(onelock::MemoryBackend::new(&onelock::MemoryStore::new(clock)));
/// # let locks = onelock::Locks::builder(store).build()?;
/// # async fn reconcile(_: FencingToken) -> Result<&'static str> { Ok("done") }
/// let election = locks.election("reconciler")?;
/// let done = election.run(|term| async move { reconcile(term.token()?).await }).await?;
/// assert_eq!(done, "done");
/// assert!(election.leader().await?.is_none()); // given back when the work had ended
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    lock: Lock,
    pause: Duration,
    notice: Duration,
    on_failure: Option<OnFailure>,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its label.
    pub note: String,
    /// The fencing token of its term. A quorum shows a smaller one while a member does not answer.
    pub token: FencingToken,
    /// When it became a candidate for this term, by this host's calendar; `None` where the store does not know, or that is yet to
    /// be set.
    pub since: Option<SystemTime>,
}

/// One term of this candidate: from when it leads until it is lost, steps down, or its work has ended. Cheap to clone; a clone
/// does not keep the lock.
#[derive(Clone, Debug)]
pub struct Term {
    guard: Arc<Guard>,
    stepping_down: Arc<watch::Sender<bool>>,
    notice: Duration,
}

impl Locks {
    /// An election of this name. Its candidates, on whatever host, wait in the line of the lock `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let election = locks.election("nightly")?;
    /// // One candidate of many, until it steps down: `election.run(|term| work(term)).await`.
    /// assert!(election.leader().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Ok(Election {
            lock: self.mutex(name)?,
            pause: Duration::from_secs(1),
            notice: Duration::ZERO,
            on_failure: None,
        })
    }
}

impl Election {
    /// The candidate's label, which observers see.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is too long or has control characters.
    pub fn note(mut self, text: impl AsRef<str>) -> Result<Self> {
        self.lock = self.lock.note(text)?;
        Ok(self)
    }

    /// The lease of a leader: how soon another one leads after this process died.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    pub fn ttl(mut self, ttl: Duration) -> Result<Self> {
        self.lock = self.lock.ttl(ttl)?;
        Ok(self)
    }

    /// How long this candidate waits before it stands again after its work has failed, or a campaign could not reach the
    /// store: a second unless set.
    #[must_use]
    pub fn pause_after_failure(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// How long before its end a term tells its work ([`Term::ending`]): zero unless set.
    ///
    /// It is the time before the deadline when renewals fail, and the time that the work has after a step-down.
    #[must_use]
    pub fn step_down_notice(mut self, notice: Duration) -> Self {
        self.notice = notice;
        self
    }

    /// Calls `f` with each failure after which this candidate goes on: of its work, of a campaign, of a release.
    #[must_use]
    pub fn on_failure(mut self, f: impl Fn(&dyn fmt::Display) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Given::new(Box::new(f)));
        self
    }

    /// Campaigns, runs `work` while it leads, and campaigns again, until `work` answers `Ok`.
    ///
    /// `work` is dropped at its next await when the term is lost; the lock is given back only when it has ended. Work that
    /// does not await cannot be stopped: its token tells its late writes from the next leader's. A panic of `work` gives the lock
    /// back and goes on to the caller.
    ///
    /// # Errors
    /// An error of the store that no retry may mend. Failures of `work` are not errors of this call: see
    /// [`Election::on_failure`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and then gives the lock back in the background.
    pub async fn run<W, F, T, E>(&self, mut work: W) -> Result<T>
    where
        W: FnMut(Term) -> F,
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        loop {
            match self.lock.acquire().await {
                Ok(guard) => match self.lead(guard, &mut work).await {
                    Some(Ok(done)) => return Ok(done),
                    Some(Err(error)) => self.failed(&error),
                    None => continue,
                },
                Err(error) if error.is_retryable() || error.kind() == ErrorKind::Evicted => {
                    self.failed(&error);
                }
                Err(error) => return Err(error),
            }
            until_next(&self.lock.client, self.pause).await;
        }
    }

    /// One term, until the lock is given back; `None` where the work was stopped.
    async fn lead<F: Future>(&self, guard: Guard, work: &mut impl FnMut(Term) -> F) -> Option<F::Output> {
        let (guard, notice) = (Arc::new(guard), self.notice);
        let term = Term { guard, notice, stepping_down: Arc::default() };
        let Handle { client, entry } = term.guard.handle();
        // Its end gives back what was lost, and the rest when this is dropped: clones of the term do not keep the lock.
        let _own = Handle { client: Arc::clone(client), entry: Arc::clone(entry) };
        let handed_on = async {
            term.step_down_asked().await;
            client.sleep(notice).await;
        };
        let working = async {
            tokio::select! {
                biased;
                () = handed_on => None,
                // Begun in here: not where the term is over.
                ended = async { work(term.clone()).await } => Some(ended),
            }
        };
        let ended = term.guard.run(working).await.ok().flatten();
        let lost = term.guard.loss().is_some();
        if let Err(error) = term.guard.give_back().await
            && !lost
        {
            self.failed(&error);
        }
        ended
    }

    fn failed(&self, error: &dyn fmt::Display) {
        if let Some(on_failure) = &self.on_failure {
            on_failure.get()(error);
        }
    }

    /// Who leads now; `None` when nobody does.
    ///
    /// # Errors
    /// An error of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let snapshot = self.lock.client.inspect(self.lock.name().clone()).await?;
        Ok(snapshot.holders.into_iter().next().map(|holder| Leader {
            note: holder.note,
            token: holder.token,
            // Before 1970 it was not: this clock is yet to be set.
            since: holder
                .age
                .and_then(|age| SystemTime::now().checked_sub(age))
                .filter(|since| *since >= SystemTime::UNIX_EPOCH),
        }))
    }

    /// Who leads, now and after each change: a stream that does not end. While the store cannot be reached it says
    /// nothing; it may pass over a leader that led between two requests (a tenth of the ttl, at most a second), and never over the last.
    pub fn observe(&self) -> Observe {
        Observe { next: Box::pin(change(self.clone(), None)), election: self.clone() }
    }
}

impl Term {
    /// The fencing token of this term: pass it to every resource the leader writes to.
    ///
    /// # Errors
    /// As [`Guard::token`].
    pub fn token(&self) -> Result<FencingToken> {
        self.guard.token()
    }

    /// Whether this candidate leads now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// How long it may be believed in yet if no renewal comes.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Waits until the term is lost, and says why.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Waits until the term is about to end: a step-down was asked for, or less than the notice is left and no renewal
    /// has come. See [`Election::step_down_notice`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ending(&self) {
        tokio::select! {
            () = self.step_down_asked() => {}
            () = self.guard.at_risk(self.notice) => {}
        }
    }

    /// Hands on: the work is asked to end, has the notice for it, and is dropped; then the lock is given back, and this candidate stands at
    /// the end of the line. Returns when the term is over; inside the work it does not return.
    ///
    /// # Cancel safety
    /// The step-down goes on.
    pub async fn step_down(&self) {
        self.stepping_down.send_replace(true);
        self.lost().await;
    }

    async fn step_down_asked(&self) {
        // The sender is here: this ends with the request only.
        let _ = self.stepping_down.subscribe().wait_for(|asked| *asked).await;
    }
}

/// The stream of [`Election::observe`].
#[must_use = "a stream does nothing until it is polled"]
pub struct Observe {
    election: Election,
    next: Pin<Box<dyn Future<Output = Option<Leader>> + Send>>,
}

impl Observe {
    /// The next item of the stream.
    ///
    /// # Cancel safety
    /// Safe: no change is missed.
    pub async fn next(&mut self) -> Option<Leader> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await.flatten()
    }
}

impl Stream for Observe {
    type Item = Option<Leader>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let leader = ready!(self.next.as_mut().poll(context));
        self.next = Box::pin(change(self.election.clone(), Some(leader.clone())));
        Poll::Ready(Some(leader))
    }
}

/// Asks until another one leads than `seen`.
async fn change(election: Election, seen: Option<Option<Leader>>) -> Option<Leader> {
    let every = ask_every(election.lock.terms.upkeep.lease);
    let mut pause = seen.as_ref().map_or(Duration::ZERO, |_| every);
    while election.lock.client.sleep(pause).await {
        // An unreachable store does not say who leads.
        if let Ok(leader) = election.leader().await
            && seen.as_ref().is_none_or(|seen| !same(seen.as_ref(), leader.as_ref()))
        {
            return leader;
        }
        pause = every;
    }
    // The client's runtime has ended.
    pending().await
}

/// Whether it is no later term. Tokens grow, so a smaller one of the same candidate is the same term, which a quorum shows while
/// a member does not answer; and one of a candidate that asked earlier is over: a store shows it that has forgotten a release.
fn same(seen: Option<&Leader>, now: Option<&Leader>) -> bool {
    match (seen, now) {
        (Some(seen), Some(now)) => {
            // By the clocks of two requests.
            let earlier = seen.since.map(|since| since + Duration::from_secs(1)) > now.since;
            now.token == seen.token
                || (now.token < seen.token && (now.note == seen.note || (now.since.is_some() && earlier)))
        }
        (seen, now) => seen.is_none() == now.is_none(),
    }
}

impl fmt::Debug for Observe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observe").field("election", &self.election).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
