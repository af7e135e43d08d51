//! The client over a store whose verbs are slow, hang or fail, and callers that stop polling.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests")]

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
    close: AtomicU64,
    /// A waiter is asked to ask again this often; never when zero.
    wake: AtomicU64,
    renewals_fail: AtomicBool,
    acquires_fail: AtomicBool,
    /// Waits fail at once.
    waits_fail: AtomicBool,
    waits: AtomicU64,
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
            close: zero(),
            wake: zero(),
            renewals_fail: AtomicBool::default(),
            acquires_fail: AtomicBool::default(),
            waits_fail: AtomicBool::default(),
            waits: zero(),
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
        take(&self.release).await;
        self.inner.release(ticket).await
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

#[tokio::test(start_paused = true)]
async fn a_lock_lost_by_the_clock_is_the_next_ones_when_its_lease_and_delay_are_over() {
    for (delay, renewals_fail) in [(0, false), (5, false), (0, true), (5, true)] {
        let (locks, slow, other) = clients();
        let lock = locks.mutex("a").unwrap().ttl(SEC(10)).unwrap().lock_delay(SEC(delay)).unwrap();
        let start = tokio::time::Instant::now();
        let guard = lock.auto_renew(renewals_fail).acquire().await.unwrap();
        slow.renewals_fail.store(renewals_fail, Ordering::SeqCst);
        let lost = tokio::spawn(async move {
            let reason = guard.lost().await;
            (reason, start.elapsed(), guard)
        });
        let next = other.mutex("a").unwrap().acquire().await.unwrap();
        let taken = start.elapsed();
        assert!(taken >= SEC(10 + delay), "with a delay of {delay} s the next one holds after {taken:?}");
        assert!(taken < SEC(11 + delay), "{taken:?}");
        let (reason, told, guard) = lost.await.unwrap();
        assert_eq!(reason, LossReason::Expired);
        assert!(told < SEC(10), "the loss was told after {told:?}");
        drop((guard, next));
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_ends_no_lock_delay() {
    for (released, delay) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
        let (locks, _, other) = clients();
        let lock = locks.mutex("a").unwrap().ttl(SEC(9)).unwrap().max_hold(SEC(4)).unwrap();
        let start = tokio::time::Instant::now();
        let guard = lock.lock_delay(SEC(delay)).unwrap().acquire().await.unwrap();
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        assert!(
            other.mutex("a").unwrap().try_acquire().await.unwrap().is_none(),
            "given away under the work"
        );
        if released {
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        } else {
            drop(guard);
        }
        let next = other.mutex("a").unwrap().acquire().await.unwrap();
        let taken = start.elapsed();
        if delay == 0 {
            assert!(taken < SEC(5), "the work has ended, and the next one holds after {taken:?}");
        } else {
            assert!(taken >= SEC(9 + delay), "with a delay of {delay} s the next one holds after {taken:?}");
        }
        drop(next);
    }
}

#[test]
fn a_renewer_whose_waiter_asks_for_itself_lets_other_tasks_run() {
    on_one_thread(|| async {
        let (locks, slow, other) = clients();
        let held = other.mutex("a").unwrap().acquire().await.unwrap();
        // The waiter's own request is under way when its renewal falls due.
        slow.wake.store(3_200, Ordering::SeqCst);
        slow.renew.store(2_000, Ordering::SeqCst);
        let waiter = tokio::spawn({
            let lock = locks.mutex("a").unwrap();
            async move { lock.acquire().await }
        });
        tokio::time::sleep(SEC(60)).await;
        drop(held);
        assert!(waiter.await.unwrap().unwrap().is_held());
    });
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_caller_receives_goes_on_to_the_next() {
    let (locks, _, other) = clients();
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap();
    let mut left = pin!(lock.acquire());
    begin(left.as_mut());
    tokio::time::sleep(SEC(1)).await;
    held.release().await.unwrap();
    let start = tokio::time::Instant::now();
    let next = other.mutex("a").unwrap().acquire_timeout(SEC(100)).await.unwrap().expect("blocked for good");
    // A third of it until the renewer learns of the grant.
    let (most, taken) = (Settings::default().waiter_lease * 4 / 3, start.elapsed());
    assert!(taken <= most + SEC(1), "blocked for {taken:?}");
    next.release().await.unwrap();
    assert!(left.await.unwrap().is_held(), "its caller comes back and asks again");
}

#[test]
fn a_grant_for_a_caller_elsewhere_goes_on_to_the_next_until_that_has_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
    let store = MemoryStore::new(Arc::clone(&clock));
    let client = || {
        let mut settings = Settings::default();
        settings.waiter_lease = SEC(1);
        let backend = Arc::new(MemoryBackend::new(&store));
        Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings).build().unwrap()
    };
    let (locks, other) = runtime.block_on(async { (client(), client()) });
    let lock = locks.mutex("a").unwrap();
    let mut left = pin!(lock.acquire());
    begin(left.as_mut());
    let next = runtime.block_on(async {
        while other.inspect("a").await.unwrap().holders.is_empty() {
            tokio::task::yield_now().await;
        }
        other.mutex("a").unwrap().acquire_timeout(SEC(20)).await.unwrap()
    });
    assert!(next.is_some(), "blocked for good");
    assert!(!pollster(left).unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_nobody_picks_up_goes_on_to_the_next() {
    let (locks, _, other) = clients();
    let given = locks.mutex("a").unwrap().acquire().await.unwrap().hand_over().await.unwrap();
    let mut resumed = pin!(locks.resume(given));
    begin(resumed.as_mut());
    tokio::time::sleep(SEC(1)).await;
    let next = other.mutex("a").unwrap().acquire_timeout(SEC(100)).await.unwrap();
    assert!(next.is_some(), "blocked for good");
    assert!(!resumed.await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_came_to_a_closed_client_keeps_nobody_waiting() {
    let (locks, slow, other) = clients();
    slow.acquire.store(1_000, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap().at_least(SEC(600)).unwrap().lock_delay(SEC(600)).unwrap();
    let asked = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(SEC(1) / 2).await;
    locks.close(SEC(10)).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(other.mutex("a").unwrap().acquire_timeout(SEC(1)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_closed_after_releases_that_a_close_did_not_wait_for() {
    let (locks, slow, other) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    slow.release.store(5_000, Ordering::SeqCst);
    drop(guard);
    assert_eq!(locks.close(SEC(1)).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(other.mutex("a").unwrap().acquire_timeout(SEC(10)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_tells_a_busy_lock_from_a_store_that_does_not_answer() {
    let (locks, slow, other) = clients();
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap();
    for lock in [lock.clone(), lock.clone().unfair()] {
        assert!(lock.acquire_timeout(SEC(2)).await.unwrap().is_none(), "others are ahead");
        assert!(lock.acquire_timeout(Duration::ZERO).await.unwrap().is_none(), "one try");
    }
    held.release().await.unwrap();
    assert!(lock.acquire_timeout(Duration::ZERO).await.unwrap().is_some(), "one try takes a free lock");
    slow.acquire.store(60_000, Ordering::SeqCst);
    for lock in [lock.clone(), lock.unfair()] {
        let silent = lock.acquire_timeout(SEC(2)).await.unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::Timeout, "{silent}");
    }
}

/// A store may fail for a moment, however many calls fail in it; one that does not answer for a waiter's lease is an error.
#[tokio::test(start_paused = true)]
async fn a_waiter_outlives_an_outage_shorter_than_its_lease() {
    for fair in [true, false] {
        let (locks, slow, other) = clients();
        let lock = locks.mutex("a").unwrap();
        let lock = if fair { lock } else { lock.unfair() };
        let held = other.mutex("a").unwrap().acquire().await.unwrap();
        slow.acquires_fail.store(fair, Ordering::SeqCst);
        let (start, waits) = (tokio::time::Instant::now(), lock.clone());
        let waiter = tokio::spawn(async move { waits.acquire().await });
        tokio::time::sleep(SEC(3)).await;
        slow.acquires_fail.store(true, Ordering::SeqCst);
        tokio::time::sleep(SEC(6)).await;
        slow.acquires_fail.store(false, Ordering::SeqCst);
        tokio::time::sleep(SEC(3)).await;
        held.release().await.unwrap();
        drop(waiter.await.unwrap().expect("an outage of 6 s ended it"));
        assert!(start.elapsed() < SEC(13), "{:?}", start.elapsed());

        slow.acquires_fail.store(true, Ordering::SeqCst);
        let start = tokio::time::Instant::now();
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let waiter_lease = Settings::default().waiter_lease;
        assert!((waiter_lease..waiter_lease + SEC(1)).contains(&start.elapsed()), "{:?}", start.elapsed());
        let start = tokio::time::Instant::now();
        lock.clone().retry(onelock_core::Retry::default().errors(0)).acquire().await.unwrap_err();
        assert!(start.elapsed() < SEC(1), "errors(0) is no retry: {:?}", start.elapsed());
        let error = lock.acquire_timeout(SEC(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(format!("{error:?}").contains("on purpose"), "it says what failed: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_evicted_waiter_does_not_join_again() {
    let (locks, _, other) = clients();
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.mutex("a").unwrap();
        async move { lock.acquire().await }
    });
    tokio::time::sleep(SEC(1)).await;
    let token = other.inspect("a").await.unwrap().waiters[0].token;
    assert_eq!(other.evict("a", token).await.unwrap(), Release::Released);
    let ended = tokio::time::timeout(SEC(100), waiter).await.expect("it waits again");
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Evicted);
    assert_eq!(other.inspect("a").await.unwrap().waiters.len(), 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_a_release_under_way_and_no_longer_than_it_may() {
    let (locks, slow, other) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    slow.release.store(300, Ordering::SeqCst);
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    assert_eq!(locks.pending(), 1);
    locks.close(SEC(5)).await.unwrap();
    assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "closed before the release");
    release.await.unwrap().unwrap();

    let (locks, slow, _) = clients();
    slow.close.store(60_000, Ordering::SeqCst);
    let start = tokio::time::Instant::now();
    assert_eq!(locks.close(SEC(5)).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(start.elapsed() < SEC(6), "{:?}", start.elapsed());
}

#[test]
fn a_runtime_without_timers_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
        let store = MemoryStore::new(Arc::clone(&clock));
        let refused = Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Misuse);
        assert!(refused.to_string().contains("enable_time"), "{refused}");
    });
}

#[test]
fn locks_and_guards_work_on_any_runtime_and_outside_of_one() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, slow, other) = home.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
        let store = MemoryStore::new(Arc::clone(&clock));
        let slow = Slow::new(&store);
        let build = |backend: Arc<dyn Backend>| Locks::builder(backend).build().unwrap();
        (build(Arc::clone(&slow) as _), slow, build(Arc::new(MemoryBackend::new(&store))))
    });
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // Each verb needs a timer of the store.
    for time in [&slow.acquire, &slow.release, &slow.close] {
        time.store(1, Ordering::SeqCst);
    }
    let uses = || async {
        let lock = locks.mutex("a").unwrap().ttl(Duration::from_millis(200)).unwrap().auto_renew(false);
        let guard = lock.acquire().await.unwrap();
        assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.lost().await, LossReason::Expired);
        guard.release().await.unwrap_err();
        let guard = lock.acquire_timeout(SEC(30)).await.unwrap().unwrap();
        guard.run(std::future::pending::<()>()).await.unwrap_err();
        let guard = lock.acquire().await.unwrap();
        guard.at_risk(Duration::from_millis(100)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let election = locks.election("e").unwrap().pause_after_failure(Duration::from_millis(1));
        let mut failures = 0;
        let led = election.run(|term| {
            failures += 1;
            let last = failures > 2;
            async move {
                if failures == 2 {
                    term.step_down().await;
                }
                if last { Ok(()) } else { Err("once more") }
            }
        });
        led.await.unwrap();
        let mut leaders = election.observe();
        assert_eq!(leaders.next().await, None);
        let changed = std::pin::pin!(leaders.next());
        let lead = election.run(|_| async {
            std::future::pending::<()>().await;
            Ok::<_, String>(())
        });
        tokio::select! {
            leader = changed => assert!(leader.is_some()),
            _ = lead => unreachable!(),
        }
    };
    bare.block_on(uses());
    pollster(uses());
    pollster(locks.close(SEC(30))).unwrap();
    // The runtime of `other` ends while its guard is waited for elsewhere.
    let guard = pollster(other.mutex("b").unwrap().acquire()).unwrap();
    home.shutdown_background();
    assert_eq!(pollster(guard.lost()), LossReason::Closed);
    assert_eq!(pollster(other.mutex("c").unwrap().acquire()).unwrap_err().kind(), ErrorKind::Closed);
}

/// Drives a future without any runtime.
fn pollster<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_half_way_is_finished_and_given_back() {
    let (locks, slow, other) = clients();
    slow.answer.store(1_000, Ordering::SeqCst);
    for closed in [false, true] {
        begin(pin!(locks.mutex("a").unwrap().acquire()));
        assert_eq!(locks.pending(), 1);
        if closed {
            locks.close(SEC(10)).await.unwrap();
        } else {
            tokio::time::sleep(SEC(2)).await;
        }
        assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "it is left in the store");
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_an_acquire_under_way() {
    let (locks, slow, other) = clients();
    slow.answer.store(1_000, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap();
    let asked = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(SEC(1) / 2).await;
    locks.close(SEC(10)).await.unwrap();
    assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "it is left in the store");
    assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

/// A store whose calls fail at once is not asked in a loop.
#[test]
fn a_waiter_pauses_after_calls_that_fail() {
    for renewals in [false, true] {
        on_one_thread(move || async move {
            let (locks, slow, other) = clients();
            let held = other.mutex("a").unwrap().acquire().await.unwrap();
            slow.waits_fail.store(!renewals, Ordering::SeqCst);
            slow.renewals_fail.store(renewals, Ordering::SeqCst);
            slow.wake.store(u64::from(renewals), Ordering::SeqCst);
            let lock = locks.mutex("a").unwrap();
            let waiter = tokio::spawn(async move { lock.acquire().await });
            tokio::time::sleep(SEC(2)).await;
            let waits = slow.waits.load(Ordering::SeqCst);
            assert!((2..500).contains(&waits), "{waits} calls in 2 s");
            slow.waits_fail.store(false, Ordering::SeqCst);
            slow.renewals_fail.store(false, Ordering::SeqCst);
            held.release().await.unwrap();
            drop(waiter.await.unwrap().unwrap());
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_soon() {
    let (locks, slow, _) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    slow.renewals_fail.store(true, Ordering::SeqCst);
    tokio::time::sleep(SEC(25)).await;
    slow.renewals_fail.store(false, Ordering::SeqCst);
    tokio::time::sleep(SEC(25)).await;
    assert!(guard.is_held(), "2 s of its lease were left");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_starves_no_other() {
    let (locks, _, _) = clients();
    let hung = locks.mutex(HUNG).unwrap().acquire().await.unwrap();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    tokio::time::sleep(SEC(100)).await;
    assert!(guard.is_held());
    assert!(!hung.is_held());
}

#[tokio::test(start_paused = true)]
async fn an_unfair_waiter_asks_again_when_the_lease_ahead_ends() {
    let (locks, _, other) = clients();
    let dead = other.mutex("a").unwrap().ttl(SEC(2)).unwrap().auto_renew(false).acquire().await.unwrap();
    let retry = onelock_core::Retry::default().delay(SEC(60), SEC(60));
    let waits = locks.mutex("a").unwrap().unfair().retry(retry).acquire_timeout(SEC(5)).await.unwrap();
    assert!(waits.is_some(), "it slept on");
    drop(dead);
}

/// A waiter whose entry is gone was evicted; after a failed call the store may have forgotten it.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_the_store_forgot_in_an_outage_joins_again() {
    let (locks, slow, other) = clients();
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(SEC(1)).await;
    slow.renewals_fail.store(true, Ordering::SeqCst);
    tokio::time::sleep(SEC(4)).await;
    // The wait is not told: it hangs, as one does whose connection is gone.
    slow.wake.store(60_000, Ordering::SeqCst);
    let waiting = other.inspect("a").await.unwrap().waiters[0].token;
    other.evict("a", waiting).await.unwrap();
    slow.renewals_fail.store(false, Ordering::SeqCst);
    tokio::time::sleep(SEC(1)).await;
    slow.wake.store(0, Ordering::SeqCst);
    tokio::time::sleep(SEC(60)).await;
    held.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
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

/// On its own runtime and on another.
#[test]
fn a_waiter_that_is_dropped_leaves_the_line() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, _, other) = runtime.block_on(async { clients() });
    let held = runtime.block_on(other.mutex("a").unwrap().acquire()).unwrap();
    let owned = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    for lock in [locks.mutex("a").unwrap(), owned] {
        for at_home in [true, false] {
            let entered = at_home.then(|| runtime.enter());
            let mut waits = Box::pin(lock.acquire());
            begin(waits.as_mut());
            drop(entered);
            runtime.block_on(count(&other, 1));
            drop(waits);
            runtime.block_on(count(&other, 0));
        }
    }
    drop(held);
}
