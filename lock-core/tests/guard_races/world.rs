//! The store, the clock and the threads around one entry.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::backend::{Grant, Place, Release, Renewed, Request};
use onelock_core::lease::Margin;
use onelock_core::{FencingToken, HolderId, LockName, LossReason, Mode, Timestamp};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread::{JoinHandle, yield_now};

use crate::entry::{Entry, Upkeep, View};

/// Schedules per race and scheduler; `ONELOCK_VOLUME` multiplies them.
const SCHEDULES: usize = 1_000;
const LEASE: Duration = Duration::from_secs(30);
const MINE: HolderId = HolderId::from_u128(1);
const NEXT: HolderId = HolderId::from_u128(2);

/// Random schedules, and those that are rare among them: few switches at the worst moments.
pub(crate) fn explore(race: impl Fn() + Clone + Send + Sync + 'static) {
    let volume = std::env::var("ONELOCK_VOLUME").ok().and_then(|text| text.parse().ok()).unwrap_or(1_usize);
    let schedules = SCHEDULES * volume.clamp(1, 100);
    shuttle::check_random(race.clone(), schedules);
    shuttle::check_pct(race, schedules, 3);
}

pub(crate) fn join<const N: usize>(threads: [JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// What the store did.
#[derive(Debug)]
struct Store {
    /// Who holds: the entry, or the next in the line once it is gone.
    holder: HolderId,
    /// Who asked for a release, and what came of it.
    releases: Vec<(HolderId, Release)>,
}

#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    entry: Entry,
    store: Mutex<Store>,
    /// Seconds on the clock.
    now: AtomicU64,
    pushed: AtomicBool,
    /// Whether a caller works under a hold that it waited for.
    received: AtomicBool,
    /// Set once somebody has seen the end.
    over: AtomicBool,
    /// What those who waited for the loss were told.
    told: Mutex<Vec<LossReason>>,
    /// It has ended because the store said that it is gone.
    gone: AtomicBool,
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_secs(secs))
}

fn token() -> FencingToken {
    FencingToken::new(7).unwrap()
}

impl World {
    fn new(answer: Renewed) -> Self {
        let request = Request::new(LockName::new("raced").unwrap(), MINE, Mode::Exclusive, LEASE);
        let margin = Margin::new(0.1, Duration::ZERO).unwrap();
        let upkeep = Upkeep { margin, lease: LEASE, auto_renew: true, max_hold: None, at_least: None };
        Self(Arc::new(Inner {
            entry: Entry::new(&request, upkeep, at(100), at(100), answer).unwrap(),
            store: Mutex::new(Store { holder: MINE, releases: Vec::new() }),
            now: AtomicU64::new(110),
            pushed: AtomicBool::new(false),
            received: AtomicBool::new(false),
            over: AtomicBool::new(false),
            told: Mutex::default(),
            gone: AtomicBool::new(false),
        }))
    }

    /// A hold that a caller has.
    pub(crate) fn held() -> Self {
        let world = Self::new(Renewed::Held(Grant::new(token(), LEASE)));
        assert!(world.0.entry.receive(at(100)));
        world
    }

    pub(crate) fn waiting() -> Self {
        Self::new(Renewed::Waiting(Place::new(token(), LEASE)))
    }

    fn now(&self) -> Timestamp {
        at(self.0.now.load(Ordering::SeqCst))
    }

    /// The store's side of a release.
    fn release(&self, ticket: &onelock_core::Ticket) -> Release {
        yield_now();
        let mut store = self.0.store.lock().unwrap();
        let ours = store.holder == ticket.holder;
        if ours {
            store.holder = NEXT;
        }
        let answer = if ours { Release::Released } else { Release::NotHeld };
        store.releases.push((ticket.holder, answer));
        answer
    }

    /// As the guard does with what may be left in the store.
    fn give_back(&self) {
        let gone = self.0.gone.load(Ordering::SeqCst);
        if let Some(ticket) = self.0.entry.take_owed() {
            assert!(!gone, "given back although the store said that it is gone");
            self.release(&ticket);
        }
    }

    /// As the renewer does with what nobody has received.
    fn give_back_unreceived(&self) {
        if let Some(ticket) = self.0.entry.take_unreceived() {
            assert!(!self.0.received.load(Ordering::SeqCst), "given back while a caller works under it");
            self.release(&ticket);
        }
    }

    /// Somebody takes the entry out of the line.
    pub(crate) fn evict(&self) {
        self.0.store.lock().unwrap().holder = NEXT;
    }

    /// `renewer::round` and `renewer::renew` for this entry.
    pub(crate) fn renewing(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            let (entry, sent) = (&world.0.entry, world.now());
            if let View::Over(_) = entry.view(sent) {
                world.give_back_unreceived();
                return;
            }
            let Some(_renewal) = entry.due_renewal(sent) else { return };
            yield_now();
            let ours = world.0.store.lock().unwrap().holder == MINE;
            yield_now();
            let held = Renewed::Held(Grant::new(token(), LEASE));
            let now = world.now();
            entry.renewed(sent, now, &Ok(if ours { held } else { Renewed::NotHeld }));
            if entry.view(now) == View::Over(LossReason::NotHeld) {
                world.0.gone.store(true, Ordering::SeqCst);
            }
            world.give_back_unreceived();
        }
    }

    /// `Guard::release`; `alone` when nothing but the release can end it.
    pub(crate) fn releasing(&self, alone: bool) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            let entry = &world.0.entry;
            match entry.end_for_release(world.now(), LossReason::Released) {
                Err(_) => world.give_back(),
                Ok(Some(ticket)) => {
                    let answer = world.release(&ticket);
                    assert!(!alone || answer == Release::Released);
                }
                Ok(None) => {
                    assert!(!alone, "held, and somebody else gave it back: the release would answer `lost`");
                }
            }
            world.stays_over();
        }
    }

    /// `Handle::drop`.
    pub(crate) fn dropping(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            world.0.entry.end(world.now(), LossReason::Released);
            world.give_back();
            world.stays_over();
        }
    }

    /// `renewer::close`.
    pub(crate) fn closing(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            world.0.entry.end(world.now(), LossReason::Closed);
            world.give_back_unreceived();
            world.stays_over();
        }
    }

    /// The push, as the acquire loop takes it.
    pub(crate) fn pushing(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            let (now, over) = (world.now(), world.0.over.load(Ordering::SeqCst));
            let counted = world.0.entry.pushed(token(), now);
            assert!(!(over && counted), "a push counted after the end was seen");
            world.0.pushed.store(counted, Ordering::SeqCst);
            if world.0.entry.receive(now) {
                world.0.received.store(true, Ordering::SeqCst);
            }
        }
    }

    /// The clock goes past every deadline.
    pub(crate) fn time_passing(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            for _ in 0..4 {
                world.0.now.fetch_add(LEASE.as_secs() / 2, Ordering::SeqCst);
                yield_now();
            }
            // Whoever waits for the loss sleeps until the deadline, and the renewer looks at what is due.
            world.0.now.fetch_add(1_000, Ordering::SeqCst);
            if let View::Over(_) = world.0.entry.view(world.now()) {
                world.give_back_unreceived();
            }
        }
    }

    /// `Guard::lost`: waits for the end, whoever brings it.
    pub(crate) fn watching(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            loop {
                let seen = world.0.entry.changed.told();
                if let View::Over(reason) = world.0.entry.view(world.now()) {
                    world.0.told.lock().unwrap().push(reason);
                    return;
                }
                world.0.entry.changed.wait(seen);
            }
        }
    }

    /// `Guard::is_held`, again and again: once false it stays false.
    pub(crate) fn looking(&self) -> impl FnOnce() + Send + 'static {
        let world = self.clone();
        move || {
            let mut ended = false;
            for _ in 0..4 {
                let over = world.0.over.load(Ordering::SeqCst);
                let view = world.0.entry.view(world.now());
                let held = matches!(view, View::Held { .. });
                assert!(!(held && (ended || over)), "held again after the end");
                ended |= matches!(view, View::Over(_));
                yield_now();
            }
        }
    }

    /// The end is the end, whatever time it is.
    fn stays_over(&self) {
        let first = self.0.entry.view(self.now());
        self.0.over.store(true, Ordering::SeqCst);
        let View::Over(reason) = first else { panic!("{first:?} after its end") };
        yield_now();
        assert_eq!(self.0.entry.view(at(0)), View::Over(reason), "another end");
        assert_eq!(self.0.entry.next_event(), None, "the renewer still cares for it");
        assert!(self.0.entry.due_renewal(self.now()).is_none(), "renewed after its end");
    }

    pub(crate) fn was_pushed(&self) -> bool {
        self.0.pushed.load(Ordering::SeqCst)
    }

    /// All threads are done: the store heard of it once, and the line has moved on.
    pub(crate) fn given_back_once(&self) {
        self.given_back_at_most_once();
        let store = self.0.store.lock().unwrap();
        assert_eq!(store.releases, vec![(MINE, Release::Released)], "what the store was asked to release");
    }

    pub(crate) fn given_back_at_most_once(&self) {
        let store = self.0.store.lock().unwrap();
        assert!(store.releases.len() <= 1, "given back twice: {:?}", store.releases);
        assert!(store.releases.iter().all(|(holder, _)| *holder == MINE), "another's: {:?}", store.releases);
        assert_eq!(store.holder, NEXT, "it is left in the store");
        drop(store);
        assert!(self.0.entry.take_owed().is_none(), "it is still owed");
        self.same_reason();
    }

    /// Everybody is told the same reason.
    fn same_reason(&self) {
        let View::Over(reason) = self.0.entry.view(at(0)) else { panic!("not over") };
        let told = self.0.told.lock().unwrap();
        assert!(told.iter().all(|other| *other == reason), "{told:?}, and now {reason:?}");
    }

    /// All threads are done, and it has ended by itself.
    pub(crate) fn over_at_last(&self, reasons: &[LossReason]) {
        let View::Over(reason) = self.0.entry.view(at(10_000)) else { panic!("not over") };
        assert!(reasons.contains(&reason), "{reason:?}");
        self.give_back();
        self.given_back_once();
    }
}
