//! The client over a store whose verbs are slow, hang or fail, and callers that stop polling.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests")]

mod closing;
mod failing;
mod lapsing;
mod runtimes;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, FencingToken, Info, Listing, LockName, Locks, LossReason,
    MemoryBackend, MemoryStore, Page, Raise, Release, Renewal, Renewed, Request, Result, Settings, Snapshot,
    Standing, Ticket, TokioClock, Wake,
};

const SEC: fn(u64) -> Duration = Duration::from_secs;

/// Renewals of this name are not answered.
const HUNG: &str = "hung";

/// A memory store whose verbs take time, in milliseconds.
#[derive(Debug)]
struct Slow {
    inner: MemoryBackend,
    acquire: AtomicU64,
    /// How long the answer to an acquire is under way.
    answer: AtomicU64,
    renew: AtomicU64,
    release: AtomicU64,
    /// How long the answer to a release is under way.
    freed: AtomicU64,
    close: AtomicU64,
    /// A waiter is asked to ask again this often; never when zero.
    wake: AtomicU64,
    renewals_fail: AtomicBool,
    acquires_fail: AtomicBool,
    releases_fail: AtomicBool,
    releases: AtomicU64,
    /// Waits fail at once.
    waits_fail: AtomicBool,
    waits: AtomicU64,
    /// The last acquire.
    asked: std::sync::Mutex<Option<Request>>,
}

impl Slow {
    fn new(store: &Arc<MemoryStore>) -> Arc<Self> {
        let inner = MemoryBackend::new(store);
        let zero = AtomicU64::default;
        Arc::new(Self {
            inner,
            acquire: zero(),
            answer: zero(),
            renew: zero(),
            release: zero(),
            freed: zero(),
            close: zero(),
            wake: zero(),
            renewals_fail: AtomicBool::default(),
            acquires_fail: AtomicBool::default(),
            releases_fail: AtomicBool::default(),
            releases: zero(),
            waits_fail: AtomicBool::default(),
            waits: zero(),
            asked: std::sync::Mutex::default(),
        })
    }
}

async fn take(time: &AtomicU64) {
    match time.load(Ordering::SeqCst) {
        0 => {}
        ms => tokio::time::sleep(Duration::from_millis(ms)).await,
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Slow {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().max_batch(1)
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        *self.asked.lock().unwrap() = Some(request.clone());
        take(&self.acquire).await;
        if self.acquires_fail.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "on purpose"));
        }
        let answer = self.inner.acquire(request).await;
        take(&self.answer).await;
        answer
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        if self.waits_fail.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "on purpose"));
        }
        if self.wake.load(Ordering::SeqCst) == 0 {
            return self.inner.wait(ticket).await;
        }
        take(&self.wake).await;
        Ok(Wake::Ask)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        take(&self.renew).await;
        if due.iter().any(|renewal| renewal.ticket.name.as_str() == HUNG) {
            std::future::pending::<()>().await;
        }
        if self.renewals_fail.load(Ordering::SeqCst) {
            return due.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, "on purpose"))).collect();
        }
        self.inner.renew(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        take(&self.release).await;
        if self.releases_fail.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "on purpose"));
        }
        let answer = self.inner.release(ticket).await;
        take(&self.freed).await;
        answer
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.inner.raise(ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.inner.list(prefix, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.inner.evict(name, token).await
    }

    async fn close(&self) -> Result<()> {
        take(&self.close).await;
        self.inner.close().await
    }
}

/// Two clients of one store, the first through [`Slow`].
fn clients() -> (Locks, Arc<Slow>, Locks) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let slow = Slow::new(&store);
    let build =
        |backend: Arc<dyn Backend>| Locks::builder(backend).clock(Arc::clone(&clock)).build().unwrap();
    (build(Arc::clone(&slow) as _), slow, build(Arc::new(MemoryBackend::new(&store))))
}

/// Polls once.
fn begin<F: Future>(future: std::pin::Pin<&mut F>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Runs `test` on a paused runtime of one thread, which no timer can interrupt: a task that never yields fails it.
fn on_one_thread<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(test());
        done.send(()).unwrap();
    });
    match ended.recv_timeout(SEC(60)) {
        Ok(()) => thread.join().unwrap(),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a task does not yield"),
    }
}

/// Waits until so many wait for `a`.
async fn count(locks: &Locks, waiters: usize) {
    let counted = async {
        while locks.inspect("a").await.unwrap().waiters.len() != waiters {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SEC(20), counted)
        .await
        .unwrap_or_else(|_| panic!("there are not {waiters} waiters"));
}
