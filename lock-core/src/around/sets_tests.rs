use std::sync::Arc;

use super::*;
use crate::clock::TokioClock;
use crate::memory::{MemoryBackend, MemoryStore};

fn client(store: &Arc<MemoryStore>, clock: &Arc<TokioClock>) -> Locks {
    let clock: Arc<dyn crate::clock::Clock> = Arc::clone(clock) as _;
    Locks::builder(Arc::new(MemoryBackend::new(store))).clock(clock).build().unwrap()
}

fn pair() -> (Locks, Locks) {
    let clock = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock) as _);
    (client(&store, &clock), client(&store, &clock))
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_set_is_refused() {
    let (locks, other) = pair();
    let kind = |set: Result<LockSet>| set.unwrap_err().kind();
    assert_eq!(kind(locks.all(Vec::<&str>::new())), ErrorKind::InvalidConfig);
    assert_eq!(kind(locks.all((0..256).map(|n| n.to_string()))), ErrorKind::InvalidConfig);
    assert_eq!(kind(locks.all(["a", ""])), ErrorKind::InvalidName);
    let (a, foreign) = (locks.mutex("a").unwrap(), other.mutex("b").unwrap());
    assert_eq!(kind(locks.all_of([a.clone(), foreign])), ErrorKind::Misuse);
    assert_eq!(kind(locks.all_of([a, locks.semaphore("a", 2).unwrap()])), ErrorKind::InvalidConfig);
    let names: Vec<_> =
        locks.all(["b", "a", "b"]).unwrap().locks().iter().map(|l| l.name().to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(locks.all((0..255).map(|n| n.to_string())).unwrap().locks().len(), 255);
}

#[tokio::test(start_paused = true)]
async fn all_or_none_are_held() {
    let (locks, other) = pair();
    let second = other.mutex("b").unwrap().acquire().await.unwrap();
    let set = locks.all(["c", "b", "a"]).unwrap();
    assert!(set.try_acquire().await.unwrap().is_none());
    let first = other.mutex("a").unwrap().acquire().await.unwrap();
    let began = tokio::time::Instant::now();
    let (over, ()) = tokio::join!(set.acquire_timeout(Duration::from_secs(3)), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        first.release().await.unwrap();
    });
    assert!(over.unwrap().is_none());
    assert_eq!(began.elapsed().as_secs(), 3, "one deadline for all");
    locks.close(Duration::from_secs(5)).await.unwrap();
    for name in ["a", "c"] {
        assert!(other.mutex(name).unwrap().try_acquire().await.unwrap().is_some(), "{name} was given back");
    }
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_stops_all_of_the_work_and_is_named() {
    let (locks, other) = pair();
    let set = locks.all(["a", "b"]).unwrap().acquire().await.unwrap();
    let token = set.token("b").unwrap();
    assert_eq!(set.token("x").unwrap_err().kind(), ErrorKind::Misuse);
    let evict = async {
        other.evict("b", token).await.unwrap();
        std::future::pending::<()>().await;
    };
    let error = set.run(evict).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("`b`"), "{error}");
    assert_eq!(set.lost().await, (LockName::new("b").unwrap(), LossReason::NotHeld));
    assert_eq!(set.token("a").unwrap_err().kind(), ErrorKind::Lost);
    assert!(!set.is_held() && set.remaining().is_zero() && set.guards()[0].is_held());
    assert_eq!(set.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(
        other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(),
        "the other lock was given back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_lost_in_an_outage_says_what_has_failed() {
    let locks = crate::testing::paused().unwrap();
    let set = locks.all(["a", "b"]).unwrap().acquire().await.unwrap();
    let _outage = crate::testing::outage(&locks).unwrap();
    let error = set.run(std::future::pending::<()>()).await.unwrap_err();
    assert!(format!("{error:?}").contains("the store is away"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn crossing_sets_never_wait_in_a_circle() {
    let (one, two) = pair();
    let mut tasks = tokio::task::JoinSet::new();
    let inside = Arc::new([const { std::sync::atomic::AtomicU32::new(0) }; 5]);
    for n in 0..30_usize {
        let (locks, inside) = (if n % 2 == 0 { one.clone() } else { two.clone() }, Arc::clone(&inside));
        tasks.spawn(async move {
            for turn in 0..10 {
                let mine = [(n + turn) % 5, (n * 3 + 1) % 5, (turn * 7) % 5];
                let mut mine = mine.to_vec();
                mine.sort_unstable();
                mine.dedup();
                let set =
                    locks.all(mine.iter().rev().map(|n| format!("n{n}"))).unwrap().acquire().await.unwrap();
                let count = |by: fn(&std::sync::atomic::AtomicU32) -> u32| {
                    mine.iter().map(|&n| by(&inside[n])).collect::<Vec<_>>()
                };
                let before = count(|n| n.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
                assert!(before.iter().all(|&others| others == 0), "{before:?}");
                tokio::task::yield_now().await;
                count(|n| n.fetch_sub(1, std::sync::atomic::Ordering::SeqCst));
                set.release().await.unwrap();
            }
        });
    }
    let done = tokio::time::timeout(Duration::from_secs(600), tasks.join_all()).await;
    assert_eq!(done.expect("no deadlock").len(), 30);
}

#[tokio::test(start_paused = true)]
async fn what_an_incomplete_set_had_keeps_no_least_time() {
    let (locks, other) = pair();
    let _busy = other.mutex("b").unwrap().acquire().await.unwrap();
    let first = locks.mutex("a").unwrap().at_least(Duration::from_secs(300)).unwrap();
    let set = locks.all_of([first, locks.mutex("b").unwrap()]).unwrap();
    assert!(set.try_acquire().await.unwrap().is_none());
    assert!(other.mutex("a").unwrap().acquire_timeout(Duration::from_secs(1)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_set_that_has_lost_a_lock_waits_for_no_other() {
    let (locks, other) = pair();
    let _busy = other.mutex("b").unwrap().acquire().await.unwrap();
    let set = locks.all(["a", "b"]).unwrap();
    let set = tokio::spawn(async move { set.acquire().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let token = other.inspect("a").await.unwrap().holders[0].token;
    other.evict("a", token).await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(60), set).await.expect("it ends").unwrap();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_least_time_that_an_owner_has_worked_under_outlives_an_incomplete_set() {
    let (locks, other) = pair();
    let _busy = other.mutex("b").unwrap().acquire().await.unwrap();
    let second = Duration::from_secs(1);
    for outlives in [true, false] {
        let first = locks.mutex("a").unwrap().at_least(second * 300).unwrap().owner(&locks.owner()).unwrap();
        let set = locks.all_of([first.clone(), locks.mutex("b").unwrap()]).unwrap();
        // Alone it is nobody's work.
        assert!(set.try_acquire().await.unwrap().is_none());
        tokio::time::sleep(second).await;
        assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some());
        tokio::time::sleep(second).await;
        let outer = first.acquire().await.unwrap();
        let (entered, released) = tokio::join!(set.acquire_timeout(second * 5), async {
            tokio::time::sleep(second).await;
            if outlives { Some(outer) } else { outer.release().await.map(|()| None).unwrap() }
        });
        assert!(entered.unwrap().is_none());
        drop(released);
        assert!(other.mutex("a").unwrap().acquire_timeout(second * 290).await.unwrap().is_none());
        assert!(other.mutex("a").unwrap().acquire_timeout(second * 20).await.unwrap().is_some());
    }
}
