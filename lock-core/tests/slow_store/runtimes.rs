//! Callers on other runtimes, and on none.

use onelock_core::driver::{Driver, opening};

use super::*;

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
    let owned = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    for lock in [locks.mutex("a").unwrap(), owned] {
        let held = runtime.block_on(other.mutex("a").unwrap().acquire()).unwrap();
        let mut left = pin!(lock.acquire());
        begin(left.as_mut());
        let next = runtime.block_on(async {
            count(&other, 1).await;
            held.release().await.unwrap();
            other.mutex("a").unwrap().acquire_timeout(SEC(20)).await.unwrap()
        });
        assert!(next.is_some(), "blocked for good");
        assert!(!pollster(left).unwrap().is_held());
        runtime.block_on(next.unwrap().release()).unwrap();
    }
    // Two calls of one owner that are left: each has a guard, and nobody has one.
    let owned = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    let held = runtime.block_on(other.mutex("a").unwrap().acquire()).unwrap();
    let (mut left, mut second) = (pin!(owned.acquire()), pin!(owned.acquire()));
    begin(left.as_mut());
    begin(second.as_mut());
    let next = runtime.block_on(async {
        count(&other, 1).await;
        held.release().await.unwrap();
        other.mutex("a").unwrap().acquire_timeout(SEC(20)).await.unwrap()
    });
    assert!(next.is_some(), "blocked for good by two");
    runtime.block_on(next.unwrap().release()).unwrap();
    // Nor does an election begin its work then.
    let election = locks.election("a").unwrap();
    let held = runtime.block_on(other.mutex("a").unwrap().acquire()).unwrap();
    let mut left = pin!(election.run(|term| {
        assert!(term.is_leader(), "begun without the lock");
        async { Ok::<_, Error>(()) }
    }));
    begin(left.as_mut());
    let next = runtime.block_on(async {
        count(&other, 1).await;
        held.release().await.unwrap();
        other.mutex("a").unwrap().acquire_timeout(SEC(20)).await.unwrap()
    });
    begin(left.as_mut());
    runtime.block_on(next.unwrap().release()).unwrap();
    pollster(left).unwrap();
    // Its owner enters meanwhile: somebody has it.
    let lock = locks.mutex("a").unwrap().ttl(SEC(6)).unwrap().owner(&locks.owner()).unwrap();
    let held = runtime.block_on(other.mutex("a").unwrap().acquire()).unwrap();
    let mut left = pin!(lock.acquire());
    begin(left.as_mut());
    runtime.block_on(async {
        count(&other, 1).await;
        held.release().await.unwrap();
        let inside = lock.acquire().await.unwrap();
        let mut seen = inside.deadline();
        for _ in 0..2 {
            seen = inside.renewed(seen).await.expect("lost under its owner");
        }
    });
}

/// It has been held for longer than a waiter's lease, at which a grant would end that nobody has received.
#[test]
fn an_owner_enters_again_from_elsewhere_at_any_time() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
    let store = MemoryStore::new(Arc::clone(&clock));
    let locks = runtime.block_on(async {
        let mut settings = Settings::default();
        settings.waiter_lease = Duration::from_millis(20);
        Locks::builder(Arc::new(MemoryBackend::new(&store))).settings(settings).build().unwrap()
    });
    let lock = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    let outer = runtime.block_on(lock.acquire()).unwrap();
    let later = clock.now() + locks.settings().waiter_lease;
    while clock.now() < later {
        std::thread::yield_now();
    }
    let inner = pollster(lock.acquire()).unwrap();
    assert_eq!((outer.loss(), inner.loss()), (None, None));
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
        let long = locks.mutex("a").unwrap().auto_renew(false);
        let lock = long.clone().ttl(Duration::from_millis(200)).unwrap();
        let guard = long.acquire().await.unwrap();
        assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.lost().await, LossReason::Expired);
        guard.release().await.unwrap_err();
        let guard = lock.acquire_timeout(SEC(30)).await.unwrap().unwrap();
        guard.run(std::future::pending::<()>()).await.unwrap_err();
        let guard = long.acquire().await.unwrap();
        guard.at_risk(guard.remaining() - Duration::from_millis(100)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let handed = locks.mutex("h").unwrap().acquire().await.unwrap().hand_over().await.unwrap();
        locks.resume(handed).await.unwrap().release().await.unwrap();
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

/// What was polled on the client's own runtime first, and goes on outside of any.
#[test]
fn a_call_that_began_at_home_goes_on_elsewhere() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
    let store = MemoryStore::new(clock);
    let slow = Slow::new(&store);
    let locks = home.block_on(async { Locks::builder(Arc::clone(&slow) as _).build().unwrap() });
    // Two timers one after the other: the second is made elsewhere.
    for time in [&slow.acquire, &slow.answer, &slow.release, &slow.freed] {
        time.store(1, Ordering::SeqCst);
    }
    fn moved<T>(home: &tokio::runtime::Runtime, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let entered = home.enter();
        begin(call.as_mut());
        drop(entered);
        pollster(call)
    }
    let lock = locks.mutex("a").unwrap().auto_renew(false);
    let guard = moved(&home, lock.acquire()).unwrap();
    moved(&home, guard.release()).unwrap();
    let guard = moved(&home, lock.try_acquire()).unwrap().unwrap();
    moved(&home, guard.at_risk(guard.remaining() - Duration::from_millis(500)));
    moved(&home, guard.release()).unwrap();
    let short = lock.clone().ttl(Duration::from_millis(1_500)).unwrap();
    let guard = moved(&home, short.try_acquire()).unwrap().unwrap();
    assert_eq!(moved(&home, guard.lost()), LossReason::Expired);
    drop(guard);
    let guard = moved(&home, lock.acquire_timeout(SEC(30))).unwrap().unwrap();
    drop(guard);
    let owned = lock.owner(&locks.owner()).unwrap();
    drop(moved(&home, owned.acquire()).unwrap());
    let election = locks.election("e").unwrap();
    moved(&home, election.run(|_| async { Ok::<_, Error>(()) })).unwrap();
    drop(moved(&home, locks.all(["x", "y"]).unwrap().acquire()).unwrap());
    moved(&home, locks.close(SEC(30))).unwrap();
}

/// What waits for the end of a lock, and was polled on the client's own runtime before that ended.
#[test]
fn a_wait_that_began_at_home_outlives_its_runtime() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, ..) = home.block_on(async { clients() });
    let guard = home.block_on(locks.mutex("a").unwrap().acquire()).unwrap();
    let (mut lost, mut work) = (pin!(guard.lost()), pin!(guard.run(std::future::pending::<()>())));
    let entered = home.enter();
    begin(lost.as_mut());
    begin(work.as_mut());
    drop(entered);
    drop(home);
    assert_eq!(pollster(lost), LossReason::Closed);
    assert_eq!(pollster(work).unwrap_err().kind(), ErrorKind::Lost);
}

/// What asks the store, and was polled on the client's own runtime before that ended.
#[test]
fn a_call_that_began_at_home_ends_with_its_runtime() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, slow, other) = home.block_on(async { clients() });
    let _held = home.block_on(other.mutex("a").unwrap().acquire()).unwrap();
    let guard = home.block_on(locks.mutex("b").unwrap().acquire()).unwrap();
    slow.release.store(60_000, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap();
    let unfair = lock.clone().unfair();
    let (mut waits, mut asks) = (pin!(lock.acquire()), pin!(unfair.acquire()));
    let (mut timed, mut releases) = (pin!(lock.acquire_timeout(SEC(60))), pin!(guard.release()));
    let entered = home.enter();
    begin(waits.as_mut());
    begin(asks.as_mut());
    begin(timed.as_mut());
    begin(releases.as_mut());
    drop(entered);
    drop(home);
    let ended =
        [pollster(waits).err(), pollster(asks).err(), pollster(timed).err(), pollster(releases).err()];
    for error in ended {
        assert_eq!(error.unwrap().kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_store_is_opened_on_a_runtime() {
    const TIMED: Driver = Driver::new("timed", &["timed"], |url, context| {
        opening(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(url);
            Ok(MemoryBackend::new(&MemoryStore::new(context.clock)))
        })
    });
    let clock = Arc::new(onelock_core::BootClock);
    let refused = pollster(Locks::open("timed://h", &[TIMED], Settings::default(), clock));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Misuse);
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
