//! Calls that fail, hang, or are late.

use onelock_core::Grant;
use onelock_core::toolkit::{Layer, Layered};

use super::*;

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
    slow.acquire.store(0, Ordering::SeqCst);
    slow.answer.store(40_000, Ordering::SeqCst);
    let late = locks.mutex("b").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout, "its lease was over before the answer came: {late}");
}

/// A try of an owner waits for the answer to its own request, as any try.
#[tokio::test(start_paused = true)]
async fn a_try_of_an_owner_that_holds_nothing_asks_the_store() {
    let (locks, slow, _) = clients();
    slow.acquire.store(10, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    for timeout in [None, Some(Duration::ZERO), Some(SEC(1))] {
        let tried = match timeout {
            None => lock.try_acquire().await,
            Some(timeout) => lock.acquire_timeout(timeout).await,
        };
        tried.unwrap().expect("it is free").release().await.unwrap();
    }
    slow.acquires_fail.store(true, Ordering::SeqCst);
    let error = lock.try_acquire().await.unwrap_err();
    assert!(format!("{error:?}").contains("on purpose"), "it says what failed: {error:?}");
}

/// It refuses acquires, and is slow to say so.
#[derive(Debug)]
struct Refusing(MemoryBackend);

#[async_trait]
impl Layer for Refusing {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn acquire(&self, _: &Request) -> Result<Standing> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        // All callers are awake while one of them is polled.
        std::thread::sleep(Duration::from_millis(2));
        Err(Error::new(ErrorKind::Denied, "on purpose"))
    }
}

/// Whichever caller polls an acquisition to its end, the one that began it learns why it failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_another_call_ended_says_what_failed() {
    let store = MemoryStore::new(Arc::new(TokioClock::new()));
    let refusing = Arc::new(Layered(Refusing(MemoryBackend::new(&store))));
    let locks = Locks::builder(refusing).clock(Arc::new(TokioClock::new())).build().unwrap();
    for round in 0..200 {
        let lock = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
        let waits = lock.clone();
        let mut first = Box::pin(async move { lock.try_acquire().await });
        begin(first.as_mut());
        let second = tokio::spawn(async move { waits.acquire().await });
        let tried = tokio::spawn(first).await.unwrap();
        assert_eq!(tried.map_err(|error| error.kind()).unwrap_err(), ErrorKind::Denied, "round {round}");
        assert_eq!(second.await.unwrap().unwrap_err().kind(), ErrorKind::Denied);
    }
}

/// A call shared an acquisition that ended without a lock. The next one of its owner is in a mode that is too weak for it.
#[tokio::test(start_paused = true)]
async fn a_call_of_an_owner_gets_no_weaker_mode_than_it_asks_for() {
    let (locks, slow, other) = clients();
    let shared = other.rwlock("a").unwrap().read().acquire().await.unwrap();
    slow.acquire.store(10, Ordering::SeqCst);
    let (owner, lock) = (locks.owner(), locks.rwlock("a").unwrap());
    let write = lock.write().owner(&owner).unwrap();
    let read = lock.read().owner(&owner).unwrap();
    let once = write.clone().unfair().retry(onelock_core::Retry::default().attempts(1));
    let (mut first, mut second, mut third) =
        (pin!(once.acquire()), pin!(write.acquire()), pin!(read.acquire()));
    begin(first.as_mut());
    begin(second.as_mut());
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Busy);
    begin(third.as_mut());
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    assert_eq!(third.await.unwrap().mode(), onelock_core::Mode::Shared);
    drop(shared);
}

/// Its caller leaves a release half way: it is one release still.
#[tokio::test(start_paused = true)]
async fn a_release_that_goes_on_in_the_background_is_pending_once() {
    let (locks, slow, _) = clients();
    slow.release.store(60_000, Ordering::SeqCst);
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let mut release = Box::pin(guard.release());
    begin(release.as_mut());
    assert_eq!(locks.pending(), 1);
    drop(release);
    assert_eq!(locks.pending(), 1);
}

/// Also for an owner whose calls share one acquisition.
#[tokio::test(start_paused = true)]
async fn every_timeout_of_an_owner_tells_a_busy_lock_from_a_store_that_does_not_answer() {
    let (locks, slow, other) = clients();
    let lock = locks.mutex("a").unwrap().owner(&locks.owner()).unwrap();
    let both = || async { tokio::join!(lock.acquire_timeout(SEC(2)), lock.acquire_timeout(SEC(3))) };
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let (first, second) = both().await;
    assert!(first.unwrap().is_none() && second.unwrap().is_none(), "others are ahead");
    held.release().await.unwrap();
    slow.acquire.store(60_000, Ordering::SeqCst);
    let (first, second) = both().await;
    for silent in [first, second] {
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::Timeout);
    }
    slow.acquire.store(0, Ordering::SeqCst);
    slow.acquires_fail.store(true, Ordering::SeqCst);
    let (first, second) = both().await;
    for silent in [first, second] {
        let error = silent.unwrap_err();
        assert!(format!("{error:?}").contains("on purpose"), "it says what failed: {error:?}");
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

/// Also when its wait has failed once, and the store has answered for its entry since.
#[tokio::test(start_paused = true)]
async fn an_evicted_waiter_does_not_join_again() {
    for failed in [false, true] {
        let (locks, slow, other) = clients();
        let held = other.mutex("a").unwrap().acquire().await.unwrap();
        slow.waits_fail.store(failed, Ordering::SeqCst);
        let waiter = tokio::spawn({
            let lock = locks.mutex("a").unwrap();
            async move { lock.acquire().await }
        });
        tokio::time::sleep(SEC(1)).await;
        slow.waits_fail.store(false, Ordering::SeqCst);
        tokio::time::sleep(SEC(60)).await;
        let token = other.inspect("a").await.unwrap().waiters[0].token;
        assert_eq!(other.evict("a", token).await.unwrap(), Release::Released);
        let ended = tokio::time::timeout(SEC(100), waiter).await;
        let ended = ended.unwrap_or_else(|_| panic!("it waits again; its wait had failed: {failed}"));
        assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Evicted);
        assert_eq!(other.inspect("a").await.unwrap().waiters.len(), 0);
        drop(held);
    }
}

/// A request that was sent twice, and comes late, makes another entry for its holder. Others may have held in between.
#[tokio::test(start_paused = true)]
async fn an_eviction_is_not_undone_by_a_request_that_comes_late() {
    let (locks, slow, other) = clients();
    let lock = locks.mutex("a").unwrap();
    let late = || slow.asked.lock().unwrap().take().unwrap();
    let guard = lock.acquire().await.unwrap();
    other.evict("a", guard.token().unwrap()).await.unwrap();
    other.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    slow.inner.acquire(&late()).await.unwrap();
    let lost = tokio::time::timeout(SEC(60), guard.lost()).await;
    assert_eq!(lost.expect("it holds by another number"), LossReason::NotHeld);
    drop(guard);
    let held = other.mutex("a").unwrap().acquire_timeout(SEC(5)).await.unwrap().expect("it is given back");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    count(&other, 1).await;
    let waits = other.inspect("a").await.unwrap().waiters[0].token;
    slow.inner.evict(held.name(), waits).await.unwrap();
    slow.inner.acquire(&late()).await.unwrap();
    let ended = tokio::time::timeout(SEC(60), waiter).await.expect("it waits again");
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Evicted);
    count(&other, 0).await;
    drop(held);
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

/// Each failed acquire leaves a release. A store that is too slow for what it is asked is not asked for all of them at once.
#[tokio::test(start_paused = true)]
async fn what_failed_acquires_leave_is_repeated_a_few_at_a_time() {
    const CROWD: u64 = 300;
    let (locks, slow, _) = clients();
    let lock = locks.mutex("a").unwrap().retry(onelock_core::Retry::default().errors(0));
    slow.release.store(500, Ordering::SeqCst);
    slow.acquires_fail.store(true, Ordering::SeqCst);
    slow.releases_fail.store(true, Ordering::SeqCst);
    for _ in 0..CROWD {
        lock.acquire().await.unwrap_err();
    }
    tokio::time::sleep(SEC(20)).await;
    let asked = slow.releases.load(Ordering::SeqCst);
    assert!(asked >= CROWD + 40, "{asked} in 20 s: it does not go on");
    assert!(asked <= CROWD + 400, "{asked} in 20 s");
    slow.release.store(1, Ordering::SeqCst);
    slow.releases_fail.store(false, Ordering::SeqCst);
    locks.drain(SEC(3)).await.unwrap();
    assert_eq!(locks.pending(), 0);
}

/// A lease that was long once stays in the store, however short the later ones are.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_for_as_long_as_the_store_keeps_the_entry() {
    let (locks, slow, other) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    guard.extend(SEC(3_600)).await.unwrap();
    guard.extend(SEC(10)).await.unwrap();
    slow.releases_fail.store(true, Ordering::SeqCst);
    drop(guard);
    tokio::time::sleep(SEC(60)).await;
    slow.releases_fail.store(false, Ordering::SeqCst);
    let next = other.mutex("a").unwrap().acquire_timeout(SEC(60)).await.unwrap();
    assert!(next.is_some(), "blocked for the rest of the hour");
}

/// A renewal whose answer is lost removes nothing.
#[tokio::test(start_paused = true)]
async fn a_release_within_its_least_time_tells_of_an_eviction_also_after_a_failed_call() {
    let (locks, slow, other) = clients();
    let (soon, late) = (Duration::from_millis(5), Duration::from_millis(200));
    // In the midst of the time, and over its end.
    for (held, away) in [(Duration::ZERO, soon), (SEC(300) - late / 2, late)] {
        let guard = locks.mutex("a").unwrap().at_least(SEC(300)).unwrap().acquire().await.unwrap();
        tokio::time::sleep(held).await;
        other.evict("a", guard.token().unwrap()).await.unwrap();
        slow.renewals_fail.store(true, Ordering::SeqCst);
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(away).await;
        slow.renewals_fail.store(false, Ordering::SeqCst);
        let gone = release.await.unwrap();
        assert_eq!(gone.expect_err("it was another's").kind(), ErrorKind::Lost, "after {held:?}");
    }
}

/// Also where each is repeated when its caller stops polling.
#[tokio::test(start_paused = true)]
async fn releases_that_are_left_alone_hold_no_other_up() {
    let (locks, slow, _) = clients();
    slow.release.store(500, Ordering::SeqCst);
    slow.releases_fail.store(true, Ordering::SeqCst);
    let mut left = Vec::new();
    for number in 0..20 {
        let guard = locks.mutex(format!("{number}")).unwrap().acquire().await.unwrap();
        let mut release = Box::pin(guard.release());
        tokio::time::timeout(SEC(1), &mut release).await.expect_err("it is in its second try");
        left.push(release);
    }
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    let release = tokio::spawn(guard.release());
    tokio::time::sleep(Duration::from_millis(505)).await;
    slow.releases_fail.store(false, Ordering::SeqCst);
    tokio::time::timeout(SEC(5), release).await.expect("it waits for the others").unwrap().unwrap();
    drop(left);
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

/// Its entries never end, it says.
#[derive(Debug)]
struct Endless(MemoryBackend);

#[async_trait]
impl Layer for Endless {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let Standing::Held(grant) = self.0.acquire(request).await? else { panic!("it is free") };
        Ok(Standing::Held(Grant::new(grant.token, Duration::MAX)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_may_give_the_longest_lease() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let endless = Arc::new(Layered(Endless(MemoryBackend::new(&store))));
    let locks = Locks::builder(endless).clock(clock).build().unwrap();
    let lock = locks.mutex("a").unwrap().lock_delay(SEC(1)).unwrap().auto_renew(false);
    drop(lock.acquire().await.unwrap());
    locks.drain(SEC(10)).await.unwrap();
    assert_eq!(store.names(), 0);
}

/// Its acquires are carried out, and the answers are lost.
#[derive(Debug)]
struct Unheard(MemoryBackend, AtomicBool);

#[async_trait]
impl Layer for Unheard {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let answer = self.0.acquire(request).await;
        if self.1.load(Ordering::SeqCst) {
            Err(Error::new(ErrorKind::Unavailable, "on purpose"))
        } else {
            answer
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_whose_answer_is_lost_leaves_nothing() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let unheard = Arc::new(Layered(Unheard(MemoryBackend::new(&store), AtomicBool::new(false))));
    let locks = Locks::builder(Arc::clone(&unheard) as _).clock(clock).build().unwrap();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    unheard.0.1.store(true, Ordering::SeqCst);
    assert_eq!(guard.hand_over().await.unwrap_err().kind(), ErrorKind::Unavailable);
    tokio::time::sleep(SEC(1)).await;
    assert_eq!(store.names(), 0, "its claim is left");
}
