//! The client over the memory store, on paused time.

#![allow(clippy::unwrap_used, clippy::panic)]

mod closing;
mod owner;

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

/// Stores write modes as text, and would take this one for foreign when they read it back.
#[tokio::test]
async fn a_permit_that_weighs_more_than_its_limit_is_refused() {
    let (locks, _) = locks();
    let [limit, weight] = [2, 3].map(|number| std::num::NonZeroU32::new(number).unwrap());
    let refused = locks.lock("a", onelock_core::Mode::Permit { limit, weight });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidConfig);
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
