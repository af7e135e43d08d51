//! What a case works with.

mod entries;

use std::fmt::Debug;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use onelock_core::client::lock::Lock;
use onelock_core::client::retry::Retry;
use onelock_core::{Backend, Clock, Error, ErrorKind, LockName, Mode, Settings, Timestamp};
use tokio::task::{JoinHandle, JoinSet};

use crate::case::Need;
use crate::fail;
use crate::faults::Link;
use crate::harness::{Harness, Store};
use crate::record::{Counted, Notes};
use crate::rng::Rng;
use crate::runner::Extent;
use crate::verdict::{Stop, Verdict};

pub use entries::{
    Entry, cycle, exclusive, held, holder, joined, leased, listed, name, number, permit, renew, renewal,
    request, ticket, trying, waiting,
};

/// A lease that does not end while a case runs.
pub const LONG: Duration = Duration::from_secs(120);

/// How long a case waits for what must come: far more than a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One case on one store.
pub struct Ctx {
    harness: Arc<dyn Harness>,
    store: Box<dyn Store>,
    extent: Extent,
    forks: AtomicU64,
    notes: Arc<Notes>,
}

impl Ctx {
    /// A case on `store`.
    #[must_use]
    pub fn new(harness: Arc<dyn Harness>, store: Box<dyn Store>, extent: Extent, notes: Arc<Notes>) -> Self {
        Self { harness, store, extent, forks: AtomicU64::new(0), notes }
    }

    /// What is counted for the record of this run.
    #[must_use]
    pub fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// The store of this case.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The kind of store.
    #[must_use]
    pub fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    /// The store's time unit for leases, `n` times.
    #[must_use]
    pub fn units(&self, n: u32) -> Duration {
        self.harness.unit() * n
    }

    /// A volume, scaled.
    #[must_use]
    pub fn volume(&self, n: u64) -> u64 {
        n * self.extent.volume
    }

    /// A number of cycles: `n`, scaled, or what the extent says when that is more.
    #[must_use]
    pub fn cycles(&self, n: u64) -> u64 {
        self.volume(n).max(self.extent.cycles)
    }

    /// The same for what is counted in `usize`.
    #[must_use]
    pub fn many(&self, n: usize) -> usize {
        n * usize::try_from(self.extent.volume).unwrap_or(1)
    }

    /// Random choices; each call gives other ones, the same in every run with the same seed.
    pub fn rng(&self) -> Rng {
        let fork = self.forks.fetch_add(1, Ordering::Relaxed);
        Rng::new(self.extent.seed ^ fork.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// The clock of the clients.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.harness.clock()
    }

    /// The moment now on that clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// A new client at the level of verbs.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn backend(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(Counted::new(self.store.connect().await?, &self.notes))
    }

    /// A new client at the level of verbs, whose tasks run on `runtime`.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn backend_on(&self, runtime: &tokio::runtime::Handle) -> Verdict<Arc<dyn Backend>> {
        if self.harness.lacks(Need::Processes).is_some() {
            // A store inside this process has no tasks.
            return self.backend().await;
        }
        let (harness, url) = (Arc::clone(&self.harness), self.store.url()?);
        Ok(Counted::new(runtime.spawn(async move { harness.open(&url).await }).await??, &self.notes))
    }

    /// A new client with long leases.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn locks(&self) -> Verdict<Locks> {
        let backend = self.backend().await?;
        self.client(backend, LONG, LONG)
    }

    /// A new client with leases of `lease` for holders and waiters.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn locks_for(&self, lease: Duration) -> Verdict<Locks> {
        let backend = self.backend().await?;
        self.client(backend, lease, lease)
    }

    /// A new client behind `link`.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn locks_by(
        &self,
        link: &Arc<Link>,
        lease: Duration,
        waiter_lease: Duration,
    ) -> Verdict<Locks> {
        let backend = Counted::new(self.connect_by(link).await?, &self.notes);
        self.client(backend, lease, waiter_lease)
    }

    /// A client behind `link` whose calls are not counted. Such a client does not wait long for its server, so that faults
    /// are short: one that others keep busy is asked again.
    pub(crate) async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.store.connect_by(link).await {
                Err(Stop::Failed(_)) if Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                done => return done,
            }
        }
    }

    /// A client over `backend`.
    ///
    /// # Errors
    /// When the settings are refused.
    pub fn client(
        &self,
        backend: Arc<dyn Backend>,
        lease: Duration,
        waiter_lease: Duration,
    ) -> Verdict<Locks> {
        client_of(backend, self.clock(), lease, waiter_lease)
    }

    /// How many requests the store has served so far; `None` where they cannot be counted.
    ///
    /// # Errors
    /// When the store does not say.
    pub async fn requests(&self) -> Verdict<Option<u64>> {
        match self.harness.lacks(Need::Requests) {
            None => self.store.requests().await.map(Some),
            Some(_) => Ok(None),
        }
    }

    /// Polls `probe` until it gives something, for at most [`PATIENCE`].
    ///
    /// # Errors
    /// What `probe` says; or that `what` never came.
    pub async fn eventually<T, F>(&self, what: &str, probe: impl FnMut() -> F) -> Verdict<T>
    where
        F: Future<Output = Verdict<Option<T>>>,
    {
        Self::eventually_within(PATIENCE, what, probe).await
    }

    async fn eventually_within<T, F>(limit: Duration, what: &str, mut probe: impl FnMut() -> F) -> Verdict<T>
    where
        F: Future<Output = Verdict<Option<T>>>,
    {
        let end = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(found) = probe().await? {
                return Ok(found);
            }
            if Instant::now() > end {
                fail!("{what}: not within {limit:?}");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Waits for `future`, for at most [`PATIENCE`].
    ///
    /// # Errors
    /// That `what` never came.
    pub async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Verdict<T> {
        within(PATIENCE, what, future).await
    }

    /// Whether the store shows who waits: [`Need::Line`].
    #[must_use]
    pub fn shows_the_line(&self) -> bool {
        self.harness.capabilities().fifo && self.harness.lacks(Need::Line).is_none()
    }

    /// Waits until the line of `name` has this many entries.
    ///
    /// # Errors
    /// When it never has.
    pub async fn until_line_has(&self, backend: &Arc<dyn Backend>, name: &LockName, count: usize) -> Verdict {
        let what = format!("a line of {count} for {name:?}");
        // A crowd joins as fast as the server lets it.
        let limit = PATIENCE * u32::try_from(1 + count / 250)?;
        Self::eventually_within(limit, &what, async || {
            // A server that is busy with a crowd may be late; the bound is the case's patience.
            let line = match backend.inspect(name).await {
                Ok(line) => line,
                Err(error) if error.is_retryable() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            Ok((line.holders.len() + line.waiters.len() == count).then_some(()))
        })
        .await
    }

    /// The modes that the store offers: exclusive, shared, and a permit of so many.
    ///
    /// # Errors
    /// For no permits.
    pub fn modes(&self, permits: u32) -> Verdict<Vec<Mode>> {
        let capabilities = self.harness.capabilities();
        let mut modes = vec![Mode::Exclusive];
        modes.extend(capabilities.shared.then_some(Mode::Shared));
        if capabilities.permits {
            modes.push(permit(permits)?);
        }
        Ok(modes)
    }

    /// Acquires in a task of its own. Where the store shows who waits it is there, in a line of `count` for `other`.
    ///
    /// # Errors
    /// When it never is.
    pub async fn queued(&self, lock: Lock, other: &Locks, count: usize) -> Verdict<Acquiring> {
        let name = lock.name().clone();
        let acquiring = acquiring(lock);
        if self.shows_the_line() {
            self.until_line_has(other.backend(), &name, count).await?;
        }
        Ok(acquiring)
    }

    /// Waits until these clients owe nothing and, where that can be counted, nothing is left in the store.
    ///
    /// # Errors
    /// When something stays.
    pub async fn nothing_left(&self, clients: &[Locks]) -> Verdict {
        for locks in clients {
            self.eventually("nothing is owed", async || Ok((locks.pending() == 0).then_some(()))).await?;
        }
        match self.harness.lacks(Need::Residue) {
            None => self.until_empty().await,
            Some(_) => Ok(()),
        }
    }

    /// Waits until nothing is left in the store beside counters.
    ///
    /// # Errors
    /// When something stays, with what it is.
    pub async fn until_empty(&self) -> Verdict {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = self.store.residue().await?;
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                let some: Vec<_> = left.iter().take(20).collect();
                fail!("{} things are left in the store: {some:?}", left.len());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Waits for `future`, for at most `limit`.
///
/// # Errors
/// That `what` never came.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> Verdict<T> {
    let ended = tokio::time::timeout(limit, future).await;
    ended.map_err(|_| Stop::failed(format!("{what}: not within {limit:?}")))
}

/// A client over `backend` with leases of so long for holders and waiters.
///
/// # Errors
/// When the settings are refused.
pub fn client_of(
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    lease: Duration,
    waiter_lease: Duration,
) -> Verdict<Locks> {
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, waiter_lease);
    Ok(Locks::builder(backend).clock(clock).settings(settings).build()?)
}

/// An acquisition in a task of its own.
pub type Acquiring = JoinHandle<onelock_core::Result<Guard>>;

/// Acquires in a task of its own.
#[must_use]
pub fn acquiring(lock: Lock) -> Acquiring {
    tokio::spawn(async move { lock.acquire().await })
}

/// How many tasks the runtime of the case has.
#[must_use]
pub fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Never gives up for errors or lost places.
pub fn patient() -> Retry {
    Retry::default().errors(u32::MAX)
}

/// What all these tasks give.
///
/// # Errors
/// The first that one of them ends with.
pub async fn all<T: 'static, E: Into<Stop> + 'static>(mut tasks: JoinSet<Result<T, E>>) -> Verdict<Vec<T>> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done?.map_err(Into::into)?);
    }
    Ok(all)
}

/// The error of a call that must fail with this kind.
///
/// # Errors
/// When it does not.
#[track_caller]
pub fn refused<T: Debug>(got: onelock_core::Result<T>, kind: ErrorKind, what: &str) -> Verdict<Error> {
    match got {
        Err(error) if error.kind() == kind => Ok(error),
        got => {
            let text = format!("{}: {what}: {got:?}, and not {kind:?}", Location::caller());
            Err(Stop::failed(text))
        }
    }
}

/// Asks until the store answers: on a busy machine an answer may come too late.
///
/// # Errors
/// What the store says that no further try changes, or when it takes longer than a case has patience.
pub async fn answered<T, F: Future<Output = onelock_core::Result<T>>>(ask: impl Fn() -> F) -> Verdict<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            done => return Ok(done?),
        }
    }
}

/// What an acquire with a short limit got: nothing, too, when the store has not answered within it.
///
/// # Errors
/// Any other.
pub fn in_time(got: onelock_core::Result<Option<Guard>>) -> onelock_core::Result<Option<Guard>> {
    match got {
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
        got => got,
    }
}

/// Polls `work` until about `after` from now, to the microsecond: timers tick in milliseconds.
/// `None` when it was dropped.
pub async fn cut_at<T>(work: impl Future<Output = T>, after: Duration) -> Option<T> {
    let end = std::time::Instant::now() + after;
    let moment = async {
        while std::time::Instant::now() < end {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = moment => None,
    }
}
