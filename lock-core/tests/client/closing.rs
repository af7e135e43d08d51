//! What ends without a release: timeouts, dropped futures, guards and clients, and a client that is closed.

use super::*;

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

/// However long they pause between two tries.
#[tokio::test(start_paused = true)]
async fn who_asks_again_and_again_is_told_of_a_close() {
    let minute = Duration::from_secs(60);
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let (locks, other) = (client(&store, Arc::clone(&clock)), client(&store, clock));
    let _held = other.mutex("a").unwrap().ttl(minute * 60).unwrap().acquire().await.unwrap();
    let retry = onelock_core::Retry::default().delay(minute, minute);
    let lock = locks.mutex("a").unwrap().unfair().retry(retry);
    let waits = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(minute * 10).await;
    locks.drain(minute).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(2), waits).await;
    let told = told.unwrap_or_else(|_| panic!("it sleeps on")).unwrap();
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Closed);
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
