//! The client over the memory store, on paused time.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use onelock_core::{
    Clock, Error, ErrorKind, Locks, LossReason, MemoryBackend, MemoryStore, Settings, Timestamp, TokioClock,
};

fn locks() -> (Locks, Arc<MemoryStore>) {
    let clock = Arc::new(TokioClock::new());
    let store = MemoryStore::new(clock.clone());
    (client(&store, clock), store)
}

fn client(store: &Arc<MemoryStore>, clock: Arc<dyn Clock>) -> Locks {
    Locks::builder(Arc::new(MemoryBackend::new(store)))
        .clock(clock)
        .settings(Settings::default())
        .build()
        .unwrap()
}

async fn nothing_left(locks: &Locks, store: &MemoryStore) {
    for _ in 0..1_000 {
        if locks.pending() == 0 && store.names() == 0 && store.waits() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("left: {} owed, {} names, {} waits", locks.pending(), store.names(), store.waits());
}

#[tokio::test(start_paused = true)]
async fn three_lines_to_a_lock() {
    let (locks, store) = locks();
    let guard = locks.mutex("orders/42").unwrap().acquire().await.unwrap();
    assert!(guard.is_held());
    assert!(locks.mutex("orders/42").unwrap().try_acquire().await.unwrap().is_none());
    let first = guard.token().unwrap();
    guard.release().await.unwrap();
    let guard = locks.mutex("orders/42").unwrap().try_acquire().await.unwrap().unwrap();
    assert!(guard.token().unwrap() > first);
    drop(guard);
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_it_on_release_and_is_renewed_for_hours() {
    let (locks, store) = locks();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.mutex("a").unwrap();
        async move { lock.acquire().await }
    });
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    assert!(guard.is_held(), "the renewer renews");
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(second.is_held());
    assert_eq!(second.ttl(), Duration::from_secs(30), "one renewal made the waiter's lease a holder's");
    second.release().await.unwrap();
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_before_the_store_lets_another_in() {
    let (locks, _) = locks();
    let guard = locks.mutex("a").unwrap().auto_renew(false).acquire().await.unwrap();
    let work = guard.run(std::future::pending::<()>()).await;
    assert_eq!(work.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(guard.token().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_noticed_at_the_next_renewal() {
    let (locks, _) = locks();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    locks.evict("a", guard.token().unwrap()).await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NotHeld);
}

/// Also while the first lease covers a least time that is much longer than the ttl.
#[tokio::test(start_paused = true)]
async fn an_eviction_is_noticed_long_before_a_least_time_is_over() {
    let (locks, _) = locks();
    let hour = Duration::from_secs(3_600);
    let guard = locks.mutex("a").unwrap().at_least(hour).unwrap().acquire().await.unwrap();
    let began = tokio::time::Instant::now();
    locks.evict("a", guard.token().unwrap()).await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    assert!(began.elapsed() <= Duration::from_secs(10), "a third of the ttl: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn extend_asks_for_more() {
    let (locks, _) = locks();
    let guard = locks.mutex("a").unwrap().auto_renew(false).acquire().await.unwrap();
    guard.extend(Duration::from_secs(300)).await.unwrap();
    assert_eq!(guard.ttl(), Duration::from_secs(300));
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(guard.is_held());
    let short = guard.extend(Duration::from_nanos(1)).await.unwrap_err();
    assert_eq!(short.kind(), ErrorKind::InvalidLease);
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_and_the_outermost_release_counts() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(outer.token().unwrap(), inner.token().unwrap());
    outer.release().await.unwrap();
    assert!(inner.is_held());
    assert!(locks.mutex("a").unwrap().try_acquire().await.unwrap().is_none(), "another is not this owner");
    let (third, fourth) = (inner.reenter().unwrap(), inner.reenter().unwrap());
    third.release().await.unwrap();
    inner.release().await.unwrap();
    assert!(fourth.is_held(), "each steps out once");
    fourth.release().await.unwrap();
    nothing_left(&locks, &store).await;

    let rw = locks.rwlock("b").unwrap();
    let read = rw.read().owner(&owner).unwrap().acquire().await.unwrap();
    let write = rw.write().owner(&owner).unwrap();
    assert_eq!(write.acquire().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    assert_eq!(write.try_acquire().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    drop(read);
    let write = write.acquire().await.unwrap();
    let read = rw.read().owner(&owner).unwrap().acquire().await.unwrap();
    assert_eq!(read.mode(), write.mode(), "a writer may read");
}

#[tokio::test(start_paused = true)]
async fn a_second_acquire_takes_over_from_a_cancelled_first() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.map(|_| ()) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1, "the second joins the first");
    first.abort();
    blocker.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    nothing_left(&locks, &store).await;
}

/// Polls `first` once, so that it is under way, and then leaves it alone.
async fn begun<F: Future>(first: F) -> std::pin::Pin<Box<F>> {
    let mut first = Box::pin(first);
    std::future::poll_fn(|cx| {
        assert!(first.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    first
}

#[tokio::test(start_paused = true)]
async fn a_second_acquire_goes_on_without_a_first_that_is_not_polled() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let first = begun(lock.acquire()).await;
    blocker.release().await.unwrap();
    let second = lock.acquire_timeout(Duration::from_secs(3_600)).await.unwrap();
    let second = second.unwrap_or_else(|| panic!("the second waits for the first to be polled"));
    let first = first.await.unwrap();
    assert_eq!(first.token().unwrap(), second.token().unwrap(), "entered again");
    drop((first, second));
    nothing_left(&locks, &store).await;
}

/// Whoever is polled goes on for all, and each hears what came of its own terms.
#[tokio::test(start_paused = true)]
async fn a_first_that_gave_up_hears_so_and_the_second_goes_on() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let twice = lock.clone().unfair().retry(onelock_core::Retry::default().attempts(2));
    let first = begun(twice.acquire()).await;
    let second = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1, "the second is in the line");
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Busy);
    blocker.release().await.unwrap();
    drop(second.await.unwrap().unwrap());
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn timeouts_and_dropped_waits_leave_nothing() {
    let (locks, store) = locks();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap();
    assert!(lock.acquire_timeout(Duration::from_secs(45)).await.unwrap().is_none());
    assert!(lock.clone().unfair().acquire_timeout(Duration::from_secs(5)).await.unwrap().is_none());
    let spent = lock.unfair().retry(onelock_core::Retry::default().attempts(3)).acquire().await;
    assert_eq!(spent.unwrap_err().kind(), ErrorKind::Busy);
    drop(guard);
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn close_tells_guards_and_gives_back_what_they_leave() {
    let (locks, store) = locks();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.mutex("a").unwrap();
        async move { lock.acquire().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    locks.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Closed);
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(locks.mutex("b").unwrap().acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.names(), 1, "work may run under the guard");
    // Closed again meanwhile: that does not take the guard's way to the store.
    locks.close(Duration::from_secs(5)).await.unwrap();
    drop(guard);
    nothing_left(&locks, &store).await;
}

/// Work that has not reached an await when its client closes, in a thread of its own.
#[test]
fn a_closed_client_gives_back_no_lock_under_work() {
    const WORK: Duration = Duration::from_millis(300);
    let clock: Arc<dyn Clock> = Arc::new(onelock_core::BootClock);
    let store = MemoryStore::new(Arc::clone(&clock));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let of_this = || client(&store, Arc::clone(&clock));
    for (way, patience) in [("close", WORK * 100), ("drain", Duration::ZERO), ("close", WORK / 10)] {
        let (locks, other) = runtime.block_on(async { (of_this(), of_this()) });
        let (begins, begun) = std::sync::mpsc::channel();
        let working = Arc::new(AtomicBool::new(false));
        let work = std::thread::spawn({
            let (home, lock, working) =
                (runtime.handle().clone(), locks.mutex("a").unwrap(), Arc::clone(&working));
            move || {
                home.block_on(async move {
                    let guard = lock.acquire().await.unwrap();
                    let work = async {
                        working.store(true, Ordering::SeqCst);
                        begins.send(()).unwrap();
                        std::thread::sleep(WORK);
                        working.store(false, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        panic!("it makes a step on");
                    };
                    guard.run(work).await.unwrap_err().kind()
                })
            }
        });
        begun.recv().unwrap();
        let next = runtime.block_on(async {
            let lock = other.mutex("a").unwrap();
            let next =
                tokio::spawn(async move { (lock.acquire().await.unwrap(), working.load(Ordering::SeqCst)) });
            let ended =
                if way == "close" { locks.close(patience).await } else { locks.drain(patience).await };
            assert_eq!(ended.is_ok(), patience > WORK, "{way}: {ended:?}");
            next.await.unwrap()
        });
        assert!(!next.1, "{way}: two work at the same time");
        assert!(next.0.is_held());
        assert_eq!(work.join().unwrap(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_close_waits_for_work_that_is_ending() {
    const SECOND: Duration = Duration::from_secs(1);
    for first in ["close", "drain"] {
        let (locks, store) = locks();
        let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
        let work = tokio::spawn(async move {
            guard.lost().await;
            tokio::time::sleep(SECOND * 10).await;
        });
        tokio::task::yield_now().await;
        let ended = if first == "close" { locks.close(SECOND).await } else { locks.drain(SECOND).await };
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Timeout, "{first}");
        assert!(!work.is_finished());
        locks.close(SECOND * 100).await.unwrap();
        assert!(work.is_finished(), "{first}");
        nothing_left(&locks, &store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_closed_from_the_first_poll_on() {
    for way in ["close", "drain"] {
        let (locks, _) = locks();
        let _held = locks.mutex("a").unwrap().acquire().await.unwrap();
        {
            let ending: std::pin::Pin<Box<dyn Future<Output = _>>> = match way {
                "close" => Box::pin(locks.close(Duration::from_secs(100))),
                _ => Box::pin(locks.drain(Duration::from_secs(100))),
            };
            tokio::select! { biased; _ = ending => panic!("{way}"), () = std::future::ready(()) => {} }
        }
        let refused = locks.mutex("b").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed, "{way}");
    }
}

#[tokio::test(start_paused = true)]
async fn lines_that_nobody_asks_for_again_are_forgotten() {
    let (locks, store) = locks();
    for n in 0..2_000 {
        let lock = locks.mutex(format!("n{n}")).unwrap().auto_renew(false);
        std::mem::forget(lock.acquire().await.unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Of a lease of 30 s.
    assert!(store.names() < 250, "{}", store.names());
}

#[test]
fn guards_may_be_dropped_anywhere() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, store) = runtime.block_on(async {
        let clock = Arc::new(TokioClock::new());
        let store = MemoryStore::new(clock.clone());
        (client(&store, clock), store)
    });
    let guard = runtime.block_on(async { locks.mutex("a").unwrap().acquire().await.unwrap() });
    drop(guard);
    runtime.block_on(nothing_left(&locks, &store));
    let (second, third) = runtime.block_on(async {
        (
            locks.mutex("a").unwrap().acquire().await.unwrap(),
            locks.mutex("b").unwrap().acquire().await.unwrap(),
        )
    });
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = second;
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    drop(runtime);
    drop(third);
    drop(locks);
}

#[tokio::test]
async fn an_epoch_is_in_every_token_and_taken_off_again() {
    let locks = Locks::open(
        "memory://?token_epoch=2",
        &[onelock_core::memory::DRIVER],
        Settings::default(),
        Arc::new(onelock_core::BootClock),
    )
    .await
    .unwrap();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    assert_eq!(token.get() >> 48, 2);
    assert_eq!(locks.inspect("a").await.unwrap().holders[0].token, token);
    assert_eq!(locks.evict("a", token).await.unwrap(), onelock_core::Release::Released);
}

/// A clock that the work itself sets, so that no timer of the runtime has fired when the lease ends.
#[derive(Debug)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(Duration::from_secs(self.0.load(Ordering::SeqCst)))
    }
}

/// The timer that tells of the end of the lease is late: the work is dropped all the same before its next step.
#[tokio::test(start_paused = true)]
async fn work_makes_no_step_after_the_lease() {
    let clock = Arc::new(HandClock(AtomicU64::new(1)));
    let store = MemoryStore::new(clock.clone());
    let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).clock(clock.clone()).build().unwrap();
    let steps = AtomicU64::new(0);
    // An hour goes by in each step, and the next one is due at once.
    let work = || {
        poll_fn(|context| {
            clock.0.fetch_add(3600, Ordering::SeqCst);
            context.waker().wake_by_ref();
            if steps.fetch_add(1, Ordering::SeqCst) < 1 { Poll::Pending } else { Poll::Ready(()) }
        })
    };
    let lost = |done: Result<(), Error>| {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(steps.swap(0, Ordering::SeqCst), 1);
    };
    let held = async || {
        let set =
            locks.all_of([locks.mutex("a").unwrap().auto_renew(false)]).unwrap().acquire().await.unwrap();
        // The client's own tasks have seen it, and sleep.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        set
    };
    lost(held().await.run(work()).await);
    let set = held().await;
    lost(set.guards()[0].run(work()).await);
    drop(set);
    let set = held().await;
    lost(set.guards()[0].run_until(Duration::from_secs(1), |_| work()).await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_has_no_longer_lease_than_a_holder() {
    let (locks, _) = locks();
    let held = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().ttl(Duration::from_secs(2)).unwrap();
    let _waits = begun(lock.acquire()).await;
    let waiting = locks.inspect("a").await.unwrap().waiters.remove(0);
    assert!(waiting.expires_in.unwrap() <= Duration::from_secs(2), "{waiting:?}");
    drop(held);
}

#[tokio::test]
async fn a_client_that_is_dropped_leaves_no_task() {
    let (locks, _) = locks();
    locks.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    let tasks = tokio::runtime::Handle::current().metrics();
    let others_run = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    others_run().await;
    assert_eq!(tasks.num_alive_tasks(), 1, "the renewer sleeps");
    drop(locks);
    others_run().await;
    assert_eq!(tasks.num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_joins_an_acquire_of_its_owner_is_behind_others() {
    let (locks, _) = locks();
    let owner = locks.owner();
    let held = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let _first = begun(lock.acquire()).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::from_secs(1)).await.unwrap().is_none());
    drop(held);
}
