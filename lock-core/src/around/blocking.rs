//! The same locks for callers without async: scripts, tests, thread pools.
//!
//! A thread of its own runs what talks to the store, so leases are renewed while the caller works, and while the caller's own
//! runtime, if it has one, is busy.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::around::hand_over::HandOver;
use crate::backend::{Info, Release};
use crate::capabilities::Capabilities;
use crate::client;
use crate::client::guard::LossReason;
use crate::client::retry::Retry;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

/// How long the last handle to go waits for releases that are still under way.
const SETTLE: Duration = Duration::from_secs(5);

/// A client of one store; see [`crate::Locks`]. Cheap to clone.
///
/// When the last of the client, its locks and its guards is dropped, that waits up to 5 s for releases under way.
#[derive(Clone)]
pub struct Locks {
    locks: client::Locks,
    thread: Arc<Background>,
}

/// A configured lock; see [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    lock: client::lock::Lock,
    thread: Arc<Background>,
}

/// The two faces of a lock that readers share.
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

/// A held lock; see [`crate::Guard`]. Dropping it gives the lock back in the background.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    // Before the thread, so that the release is under way when the thread is asked to end.
    guard: Arc<client::guard::Guard>,
    thread: Arc<Background>,
}

/// The thread that runs a client.
struct Background {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs `future` on the thread, and waits for it.
    fn call<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        refuse_async()?;
        let (answer, answered) = mpsc::sync_channel(1);
        // The caller waits for the answer: it cannot have gone away.
        self.runtime.spawn(async move { answer.send(future.await) });
        answered.recv().map_err(|_| Error::new(ErrorKind::Closed, "the thread of this client has ended"))
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.end.take());
        // In async code waiting could wait for itself; the thread then ends by itself.
        if let Some(thread) = self.thread.take().filter(|_| refuse_async().is_ok()) {
            let _ = thread.join();
        }
    }
}

fn refuse_async() -> Result<()> {
    match Handle::try_current() {
        Err(_) => Ok(()),
        Ok(_) => {
            let text = "a blocking call inside async code would keep other tasks from running; use the same names without `blocking`, \
                        or `spawn_blocking` outside of the runtime's context";
            Err(Error::new(ErrorKind::Misuse, text))
        }
    }
}

/// A client over whatever `connect` makes on the new thread.
///
/// # Errors
/// [`ErrorKind::Misuse`] inside async code; [`ErrorKind::Unavailable`] when no thread can be made; what `connect` says.
pub fn connect_by<F>(connect: impl FnOnce() -> F + Send + 'static) -> Result<Locks>
where
    F: Future<Output = Result<client::Locks>>,
{
    refuse_async()?;
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "no thread for the client of the store").caused_by(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    let (answer, answered) = mpsc::sync_channel(1);
    let run = move || {
        runtime.block_on(async {
            let connected = connect().await;
            let locks = connected.as_ref().ok().cloned();
            if answer.send(connected).is_err() {
                return;
            }
            let Some(locks) = locks else { return };
            // An error is the sender's end, which says the same.
            let _ = ended.await;
            // What it does not reach is freed by its lease.
            let _ = locks.close(SETTLE).await;
        });
    };
    let thread = std::thread::Builder::new().name("onelock".into()).spawn(run).map_err(failed)?;
    let thread = Arc::new(Background { runtime: handle, end: Some(end), thread: Some(thread) });
    let gone = |_| Error::new(ErrorKind::Closed, "the thread of this client has ended");
    let locks = answered.recv().map_err(gone)??;
    Ok(Locks { locks, thread })
}

impl Locks {
    fn wrap(&self, lock: client::lock::Lock) -> Lock {
        Lock { lock, thread: Arc::clone(&self.thread) }
    }

    fn call<T: Send + 'static, F>(&self, ask: impl FnOnce(client::Locks) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.thread.call(ask(self.locks.clone()))?
    }

    /// An exclusive lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Lock> {
        Ok(self.wrap(self.locks.mutex(name)?))
    }

    /// A lock that readers share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], or [`ErrorKind::Unsupported`] where the store has no shared entries.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        let lock = self.locks.rwlock(name)?;
        Ok(RwLock { read: self.wrap(lock.read()), write: self.wrap(lock.write()) })
    }

    /// A lock that up to `permits` may hold at once.
    ///
    /// # Errors
    /// As [`crate::Locks::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Lock> {
        Ok(self.wrap(self.locks.semaphore(name, permits)?))
    }

    /// Who holds and who waits.
    ///
    /// # Errors
    /// What the store says.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let name = LockName::new(name)?;
        self.call(|locks| async move { locks.inspect(name.as_str()).await })
    }

    /// The names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// As [`crate::Locks::list`].
    pub fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let (prefix, page) = (prefix.to_owned(), page.clone());
        self.call(|locks| async move { locks.list(&prefix, &page).await })
    }

    /// Removes the entry with exactly this token.
    ///
    /// # Errors
    /// As [`crate::Locks::evict`].
    pub fn evict(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Release> {
        let name = LockName::new(name)?;
        self.call(|locks| async move { locks.evict(name.as_str(), token).await })
    }

    /// Which store this is.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.locks.info()
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.locks.capabilities()
    }

    /// Ends this client; see [`crate::Locks::close`].
    ///
    /// # Errors
    /// As [`crate::Locks::close`].
    pub fn close(&self, timeout: Duration) -> Result<()> {
        self.call(|locks| async move { locks.close(timeout).await })
    }

    /// Ends this client in order: no acquisition begins any more, waiters leave, guards have up to `timeout` to end; see
    /// [`crate::Locks::drain`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let (guard, lock) = (locks.mutex("orders/42")?.acquire()?, locks.mutex("orders/43")?);
    /// let worker = std::thread::spawn(move || guard.run(|| "paid")); // it drops the guard at its end
    /// locks.drain(std::time::Duration::from_secs(30))?;
    /// assert_eq!(lock.acquire().unwrap_err().kind(), onelock::ErrorKind::Closed);
    /// # worker.join().unwrap()?;
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Locks::drain`]; [`ErrorKind::Misuse`] inside async code.
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        self.call(|locks| async move { locks.drain(timeout).await })
    }

    /// Goes on with a lock that another process has handed over; see [`crate::Locks::resume`] and [`Guard::hand_over`].
    ///
    /// # Errors
    /// As [`crate::Locks::resume`]; [`ErrorKind::Misuse`] inside async code.
    pub fn resume(&self, hand_over: HandOver) -> Result<Guard> {
        let guard = self.call(|locks| async move { locks.resume(hand_over).await })?;
        Ok(Guard { guard: Arc::new(guard), thread: Arc::clone(&self.thread) })
    }
}

impl RwLock {
    /// The shared lock.
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The exclusive lock.
    pub fn write(&self) -> Lock {
        self.write.clone()
    }
}

impl Lock {
    fn with(mut self, change: impl FnOnce(client::lock::Lock) -> Result<client::lock::Lock>) -> Result<Self> {
        self.lock = change(self.lock)?;
        Ok(self)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// How it shares the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.lock.mode()
    }

    /// The lease of a holder; see [`crate::Lock::ttl`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    pub fn ttl(self, ttl: Duration) -> Result<Self> {
        self.with(|lock| lock.ttl(ttl))
    }

    /// The lease of a waiter; see [`crate::Lock::waiter_lease`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    pub fn waiter_lease(self, lease: Duration) -> Result<Self> {
        self.with(|lock| lock.waiter_lease(lease))
    }

    /// How long the lock stays blocked beyond the lease when its holder is lost; see [`crate::Lock::lock_delay`].
    ///
    /// # Errors
    /// As [`crate::Lock::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Result<Self> {
        self.with(|lock| lock.lock_delay(delay))
    }

    /// The longest time it may be held in all; see [`crate::Lock::max_hold`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLease`].
    pub fn max_hold(self, hold: Duration) -> Result<Self> {
        self.with(|lock| lock.max_hold(hold))
    }

    /// How long it stays taken at least, however soon it is released; see [`crate::Lock::at_least`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let nightly = locks.mutex("nightly-report")?.at_least(std::time::Duration::from_secs(300))?;
    /// nightly.acquire()?.release()?; // a short job
    /// assert!(nightly.try_acquire()?.is_none()); // a host whose clock is behind does not run it again
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Lock::at_least`].
    pub fn at_least(self, time: Duration) -> Result<Self> {
        self.with(|lock| lock.at_least(time))
    }

    /// The holder's label.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn note(self, text: impl AsRef<str>) -> Result<Self> {
        self.with(|lock| lock.note(text))
    }

    /// How much of a semaphore it takes; see [`crate::Lock::weight`].
    ///
    /// # Errors
    /// As [`crate::Lock::weight`].
    pub fn weight(self, weight: u32) -> Result<Self> {
        self.with(|lock| lock.weight(weight))
    }

    /// Whether the lease is renewed while the guard lives.
    pub fn auto_renew(mut self, on: bool) -> Self {
        self.lock = self.lock.auto_renew(on);
        self
    }

    /// Asks again and again instead of waiting in the line.
    pub fn unfair(mut self) -> Self {
        self.lock = self.lock.unfair();
        self
    }

    /// How it asks again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.lock = self.lock.retry(retry);
        self
    }

    fn guard(&self, guard: client::guard::Guard) -> Guard {
        Guard { guard: Arc::new(guard), thread: Arc::clone(&self.thread) }
    }

    /// Acquires, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`]; [`ErrorKind::Misuse`] inside async code.
    pub fn acquire(&self) -> Result<Guard> {
        let lock = self.lock.clone();
        self.thread.call(async move { lock.acquire().await })?.map(|guard| self.guard(guard))
    }

    /// Acquires if that is possible at once; `None` when it is busy.
    ///
    /// # Errors
    /// As [`crate::Lock::try_acquire`]; [`ErrorKind::Misuse`] inside async code.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        let lock = self.lock.clone();
        let tried = self.thread.call(async move { lock.try_acquire().await })??;
        Ok(tried.map(|guard| self.guard(guard)))
    }

    /// Acquires, waiting at most `timeout`; see [`crate::Lock::acquire_timeout`].
    ///
    /// # Errors
    /// As [`crate::Lock::acquire_timeout`]; [`ErrorKind::Misuse`] inside async code.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>> {
        let lock = self.lock.clone();
        let tried = self.thread.call(async move { lock.acquire_timeout(timeout).await })??;
        Ok(tried.map(|guard| self.guard(guard)))
    }
}

impl Guard {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// The fencing token.
    ///
    /// # Errors
    /// As [`crate::Guard::token`].
    pub fn token(&self) -> Result<FencingToken> {
        self.guard.token()
    }

    /// Whether the lock is held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How long it may be believed in yet if no renewal comes; zero once lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Why it is not held any more; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guard.loss()
    }

    /// Waits until the lock is lost, and says why; see [`crate::Guard::lost`].
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] inside async code.
    pub fn lost(&self) -> Result<LossReason> {
        let guard = Arc::clone(&self.guard);
        self.thread.call(async move { guard.lost().await })
    }

    /// Runs `work`, and says whether the lock was held until its end. Work that blocks cannot be stopped: let long work look
    /// at [`Guard::is_held`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before the work ended, or before it began: then it was not run.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        if let Some(error) = self.guard.loss_error() {
            return Err(error);
        }
        let done = work();
        match self.guard.loss_error() {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }

    /// Asks the store for a lease of `lease` from now on.
    ///
    /// # Errors
    /// As [`crate::Guard::extend`]; [`ErrorKind::Misuse`] inside async code.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        let guard = Arc::clone(&self.guard);
        self.thread.call(async move { guard.extend(lease).await })?
    }

    /// Lets another process go on with this lock; see [`crate::Guard::hand_over`].
    ///
    /// ```
    /// let locks = onelock::blocking::connect("memory://")?;
    /// let text = String::from(locks.mutex("deploy")?.acquire()?.hand_over()?); // to the other process
    /// locks.resume(text.parse()?)?.release()?; // in the other process, with a client of its own
    /// # Ok::<(), onelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Guard::hand_over`]; [`ErrorKind::Misuse`] inside async code. Then the lock is given back.
    pub fn hand_over(self) -> Result<HandOver> {
        let guard = Arc::clone(&self.guard);
        self.thread.call(async move { guard.hand_on().await })?
    }

    /// Gives the lock back and waits until the store says so.
    ///
    /// # Errors
    /// As [`crate::Guard::release`]; [`ErrorKind::Misuse`] inside async code: then it is released in the background.
    pub fn release(self) -> Result<()> {
        let guard = Arc::clone(&self.guard);
        self.thread.call(async move { guard.give_back().await })?
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.locks.fmt(f)
    }
}

#[cfg(test)]
#[path = "blocking_tests.rs"]
mod tests;
