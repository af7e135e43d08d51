//! What a case works with.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::client::Locks;
use onelock_core::client::guard::Guard;
use onelock_core::{
    Backend, Clock, ErrorKind, FencingToken, Grant, HolderId, LockName, Mode, Place, Renewal, Renewed,
    Request, Settings, Standing, Ticket, Timestamp,
};

use crate::case::Need;
use crate::faults::Link;
use crate::harness::{Harness, Store};
use crate::record::{Counted, Notes};
use crate::rng::Rng;
use crate::runner::Extent;
use crate::verdict::{Stop, Verdict};

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
        let mut settings = Settings::default();
        settings.ttl = lease;
        settings.waiter_lease = waiter_lease;
        Ok(Locks::builder(backend).clock(self.clock()).settings(settings).build()?)
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
                return Err(Stop::failed(format!("{what}: not within {limit:?}")));
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
        self.soon_for(PATIENCE, what, future).await
    }

    /// Waits for `future`, for at most `limit`.
    ///
    /// # Errors
    /// That `what` never came.
    pub async fn soon_for<T>(
        &self,
        limit: Duration,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Verdict<T> {
        let ended = tokio::time::timeout(limit, future).await;
        ended.map_err(|_| Stop::failed(format!("{what}: not within {limit:?}")))
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
                return Err(Stop::failed(format!("{} things are left in the store: {some:?}", left.len())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
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
            Err(error) if error.is_retryable() && Instant::now() < end => {}
            done => return Ok(done?),
        }
    }
}

/// A checked name.
///
/// # Errors
/// When it is none.
pub fn name(text: &str) -> Verdict<LockName> {
    Ok(LockName::new(text)?)
}

/// A permit of a semaphore with `limit` permits.
///
/// # Errors
/// For a limit of 0.
pub fn permit(limit: u32) -> Verdict<Mode> {
    Ok(Mode::permit(limit)?)
}

/// A request with a fresh holder id that waits in the line on long leases.
///
/// # Errors
/// When the operating system has no random numbers.
pub fn request(name: &LockName, mode: Mode) -> Verdict<Request> {
    Ok(Request::new(name.clone(), HolderId::random()?, mode, LONG))
}

/// An exclusive request.
///
/// # Errors
/// As [`request`].
pub fn exclusive(name: &LockName) -> Verdict<Request> {
    request(name, Mode::Exclusive)
}

/// The same request with leases of `lease`.
#[must_use]
pub fn leased(request: Request, lease: Duration) -> Request {
    request.lease(lease).waiter_lease(lease)
}

/// The same request, not to wait in the line.
#[must_use]
pub fn trying(request: Request) -> Request {
    request.queue(false)
}

/// The renewal of an entry on the leases of its request.
#[must_use]
pub fn renewal(request: &Request, token: impl Into<Option<FencingToken>>) -> Renewal {
    Renewal::new(ticket(request, token), request.lease, request.waiter_lease)
}

/// The ticket of an entry; without a number while that is not known.
#[must_use]
pub fn ticket(request: &Request, token: impl Into<Option<FencingToken>>) -> Ticket {
    request.ticket().token(token.into())
}

/// Joins the line and must hold.
///
/// # Errors
/// When it does not.
pub async fn held(backend: &Arc<dyn Backend>, request: &Request) -> Verdict<Grant> {
    match backend.acquire(request).await? {
        Standing::Held(grant) => Ok(grant),
        other => Err(Stop::failed(format!("{:?} must hold, got {other:?}", request.name))),
    }
}

/// Joins the line and must wait.
///
/// # Errors
/// When it does not.
pub async fn waiting(backend: &Arc<dyn Backend>, request: &Request) -> Verdict<Place> {
    match backend.acquire(request).await? {
        Standing::Waiting(place) => Ok(place),
        other => Err(Stop::failed(format!("{:?} must wait, got {other:?}", request.name))),
    }
}

/// The number of an entry that waits.
///
/// # Errors
/// When the store gives none before it holds.
pub fn number(place: Place) -> Verdict<FencingToken> {
    place.token.ok_or_else(|| Stop::failed(format!("an entry that waits has no number: {place:?}")))
}

/// Renews one entry.
///
/// # Errors
/// What the store says.
pub async fn renew(backend: &Arc<dyn Backend>, due: Renewal) -> Verdict<Renewed> {
    match &backend.renew(&[due]).await[..] {
        [Ok(answer)] => Ok(*answer),
        [Err(error)] => Err(error.clone().into()),
        other => Err(Stop::failed(format!("{} answers to one renewal", other.len()))),
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
