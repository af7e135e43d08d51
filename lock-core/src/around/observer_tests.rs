use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::backend::Backend;
use crate::client::Locks;
use crate::clock::Clock;
use crate::clock::TokioClock;
use crate::error::Error;
use crate::memory::{MemoryBackend, MemoryStore};
use crate::toolkit::{Layer, Layered};

const SECOND: Duration = Duration::from_secs(1);

/// Keeps the events, in words.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Observer for Notes {
    fn on_event(&self, event: &Event<'_>) {
        let text = match event {
            Event::Waiting(of) => format!("{} waits", of.name),
            Event::Acquired { of, outcome, position, waited, .. } => {
                format!("{} {} {position:?} {waited} {}", of.name, outcome.as_str(), of.group)
            }
            Event::Held { of, .. } => format!("{} held {}", of.name, of.mode_label()),
            Event::Ended { of, held, reason, .. } => {
                format!("{} ended {reason:?} after {}", of.name, held.as_secs())
            }
            Event::Unused(of) => format!("{} unused", of.name),
            _ => return,
        };
        self.0.lock().push(text);
    }
}

fn pair() -> (Locks, Locks, Arc<Notes>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let store = MemoryStore::new(Arc::clone(&clock));
    let notes = Arc::new(Notes::default());
    let client = |settings| {
        let backend = Arc::new(MemoryBackend::new(&store));
        Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings).build().unwrap()
    };
    let observed =
        Settings::default().observer(Arc::clone(&notes) as _).metric_group(|name| name.to_uppercase());
    (client(observed), client(Settings::default()), notes)
}

#[tokio::test(start_paused = true)]
async fn every_acquisition_and_hold_is_told_once() {
    let (locks, other, notes) = pair();
    assert!(other.client.observers.is_none() || cfg!(any(feature = "metrics", feature = "tracing")));
    let lock = locks.mutex("n").unwrap();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(notes.take(), ["n acquired Some(0) false N", "n held exclusive"]);
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(SECOND).await.unwrap().is_none());
    assert_eq!(notes.take(), ["n busy Some(0) false N", "n waits", "n timeout Some(1) true N"]);
    drop(tokio::time::timeout(SECOND, lock.acquire()).await);
    assert_eq!(notes.take(), ["n waits", "n cancelled Some(1) true N"]);
    tokio::time::sleep(SECOND).await;
    guard.release().await.unwrap();
    assert_eq!(notes.take(), ["n ended Released after 3"]);
    drop(lock.acquire().await.unwrap());
    assert_eq!(notes.take(), ["n acquired Some(0) false N", "n held exclusive", "n ended Released after 0"]);
    // Until its release is through.
    tokio::time::sleep(SECOND).await;
    let owner = locks.owner();
    let lock = lock.owner(&owner).unwrap();
    let (_first, _second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let again = "n acquired Some(0) false N";
    assert_eq!(notes.take(), [again, "n held exclusive", again], "one hold, entered twice");
    let unfair = locks.mutex("n").unwrap().unfair().retry(crate::Retry::default().attempts(2));
    assert_eq!(unfair.acquire().await.unwrap_err().kind(), crate::ErrorKind::Busy);
    let waiter = locks.mutex("n").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    tokio::time::sleep(SECOND).await;
    other.evict("n", other.inspect("n").await.unwrap().waiters[0].token).await.unwrap();
    assert!(waiter.await.unwrap().is_err());
    let ends: Vec<_> = notes.take().into_iter().filter(|note| !note.contains("waits")).collect();
    // The first may be over before its position is known.
    assert!(ends[0].starts_with("n busy ") && ends[0].ends_with(" true N"), "{ends:?}");
    assert_eq!(ends[1..], ["n evicted Some(1) true N"]);
}

#[tokio::test(start_paused = true)]
async fn losses_are_told_when_they_happen_and_not_when_the_guard_goes() {
    let (locks, other, notes) = pair();
    let lost = locks.mutex("n").unwrap().auto_renew(false).acquire().await.unwrap();
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(notes.take()[2..], ["n ended Expired after 27"]);
    drop(lost);
    let evicted = locks.rwlock("m").unwrap().read().acquire().await.unwrap();
    other.evict("m", evicted.token().unwrap()).await.unwrap();
    tokio::time::sleep(SECOND * 20).await;
    assert_eq!(notes.take()[1..], ["m held shared", "m ended NotHeld after 10"]);
    let fixed = locks.mutex("f").unwrap().auto_renew(false).acquire().await.unwrap();
    other.evict("f", fixed.token().unwrap()).await.unwrap();
    fixed.extend(SECOND * 30).await.unwrap_err();
    assert_eq!(notes.take()[1..], ["f held exclusive", "f ended NotHeld after 0"]);
    let _open = locks.semaphore("p", 2).unwrap().acquire().await.unwrap();
    locks.close(SECOND).await.unwrap();
    assert_eq!(notes.take()[1..], ["p held permit", "p ended Closed after 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_takes_is_told() {
    let (locks, other, notes) = pair();
    let first = other.mutex("n").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("n").unwrap();
    let mut waiting = Box::pin(lock.acquire());
    assert!(tokio::time::timeout(SECOND, waiting.as_mut()).await.is_err());
    first.release().await.unwrap();
    // It holds and is not polled.
    let entry = locks.client.schedule.all().pop().unwrap();
    assert!(entry.pushed(entry.ticket().token.unwrap(), locks.clock().now()));
    drop(waiting);
    let seen = notes.take();
    assert!(seen.contains(&"n unused".to_owned()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_over_is_told_by_who_resumes_it() {
    let (locks, other, notes) = pair();
    let given = other.mutex("n").unwrap().acquire().await.unwrap().hand_over().await.unwrap();
    let guard = locks.resume(given).await.unwrap();
    assert_eq!(notes.take(), ["n held exclusive"]);
    tokio::time::sleep(SECOND).await;
    let given = guard.hand_over().await.unwrap();
    assert_eq!(notes.take(), ["n ended HandedOver after 1"]);
    let guard = locks.resume(given).await.unwrap();
    other.evict("n", guard.token().unwrap()).await.unwrap();
    guard.lost().await;
    assert_eq!(notes.take(), ["n held exclusive", "n ended NotHeld after 10"]);
}

/// As a grant that nobody came for in time.
#[tokio::test(start_paused = true)]
async fn a_lock_that_comes_lost_is_not_held_until_its_guard_goes() {
    let (locks, other, notes) = pair();
    let given = other.mutex("n").unwrap().acquire().await.unwrap().hand_over().await.unwrap();
    let mut resumed = Box::pin(locks.resume(given));
    assert!(tokio::time::timeout(Duration::ZERO, resumed.as_mut()).await.is_err());
    tokio::time::sleep(SECOND * 60).await;
    let _lost = resumed.await.unwrap();
    assert_eq!(notes.take()[1..], ["n held exclusive", "n ended Expired after 0"]);
}

/// Both have the same holder id.
#[tokio::test(start_paused = true)]
async fn a_late_answer_for_what_was_handed_over_ends_no_hold_of_who_resumed_it() {
    let (locks, other, notes) = pair();
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let old = Arc::clone(&guard.handle().entry);
    let resumed = locks.resume(guard.hand_over().await.unwrap()).await.unwrap();
    // As the answer to a renewal does that was under way.
    locks.client.settle(&old, locks.clock().now());
    other.evict("n", resumed.token().unwrap()).await.unwrap();
    resumed.lost().await;
    assert_eq!(
        notes.take()[2..],
        ["n ended HandedOver after 0", "n held exclusive", "n ended NotHeld after 10"]
    );
}

/// Counts the holds that began and ended. A report of one waits for another report, or for a while.
#[derive(Default)]
struct Counts([AtomicU32; 2]);

impl Observer for Counts {
    fn on_event(&self, event: &Event<'_>) {
        let [began, ended] = &self.0;
        match event {
            Event::Held { .. } => {
                began.fetch_add(1, Ordering::SeqCst);
                let until = std::time::Instant::now() + SECOND / 5;
                while began.load(Ordering::SeqCst) < 2 && std::time::Instant::now() < until {
                    std::thread::yield_now();
                }
            }
            Event::Ended { .. } => _ = ended.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_calls_end_at_the_same_moment_has_one_hold() {
    let counts = Arc::new(Counts::default());
    let store = MemoryStore::new(Arc::new(crate::BootClock));
    let settings = Settings::default().observer(Arc::clone(&counts) as _);
    let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).settings(settings).build().unwrap();
    let lock = locks.mutex("n").unwrap().owner(&locks.owner()).unwrap();
    let calls = [lock.clone(), lock].map(|lock| tokio::spawn(async move { lock.acquire().await.unwrap() }));
    for call in calls {
        call.await.unwrap().release().await.unwrap();
    }
    assert_eq!(counts.0.each_ref().map(|count| count.load(Ordering::SeqCst)), [1, 1]);
}

/// Panics once, at a lease that is low.
#[derive(Debug, Default)]
struct Panics(AtomicU32);

impl Observer for Panics {
    fn on_event(&self, event: &Event<'_>) {
        let low = matches!(event, Event::LeaseLow { .. });
        assert!(!low || self.0.fetch_add(1, Ordering::SeqCst) > 0, "on purpose");
    }
}

/// The memory store, whose renewals fail until the observer has panicked.
#[derive(Debug)]
struct Away(MemoryBackend, Arc<Panics>);

impl Layer for Away {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn pass<T: Send>(&self, verb: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if verb == "renew" && self.1.0.load(Ordering::SeqCst) == 0 {
            return Err(Error::new(crate::ErrorKind::Unavailable, "away"));
        }
        call.await
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_costs_no_lock() {
    let (panics, clock) = (Arc::new(Panics::default()), Arc::new(TokioClock::new()));
    let store = MemoryBackend::new(&MemoryStore::new(clock.clone()));
    let store = Arc::new(Layered(Away(store, Arc::clone(&panics))));
    let settings =
        Settings::default().observer(Arc::clone(&panics) as _).metric_group(|_| panic!("on purpose"));
    let locks = Locks::builder(store).clock(clock).settings(settings).build().unwrap();
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    tokio::time::sleep(SECOND * 60).await;
    assert!(panics.0.load(Ordering::SeqCst) > 0, "its lease was never low");
    assert_eq!(guard.loss(), None);
}

/// How often each verb was asked of the store.
#[derive(Default)]
struct Verbs(Mutex<std::collections::BTreeMap<&'static str, u32>>);

impl Observer for Verbs {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Request { verb, .. } = event {
            *self.0.lock().entry(verb).or_default() += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_of_three_is_six_requests() {
    let verbs = Arc::new(Verbs::default());
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::clone(&clock))));
    let settings = Settings::default().observer(Arc::clone(&verbs) as _);
    let locks = Locks::builder(backend).clock(clock).settings(settings).build().unwrap();
    locks.all(["a", "b", "c"]).unwrap().acquire().await.unwrap().release().await.unwrap();
    let asked: Vec<_> = verbs.0.lock().clone().into_iter().collect();
    assert_eq!(asked, [("acquire", 3), ("release", 3)]);
}
