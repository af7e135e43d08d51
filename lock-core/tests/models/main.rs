//! Random sequences of calls by several owners, against reference models of five locks, on paused time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod reference;

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{
    Clock, ErrorKind, Guard, Lock, Locks, MemoryBackend, MemoryStore, Mode, Owner, Settings, Timestamp,
    TokioClock,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reference::{Answer, Hold, Model, Rules};

/// Sequences per model; `ONELOCK_VOLUME` multiplies them.
const SEQUENCES: u32 = 600;
const OWNERS: usize = 4;
/// Nothing is renewed, so that the model knows when everything ends: a tenth before the lease does.
const LEASE: Duration = Duration::from_millis(10_100);
const BELIEVED: Duration = Duration::from_millis(9_090);
const PATIENCE: Duration = Duration::from_millis(2_250);

#[derive(Clone, Debug)]
enum Op {
    Try { who: usize, mode: usize },
    Timed { who: usize, mode: usize },
    Enter { guard: usize },
    Release { guard: usize },
    Drop { guard: usize },
    Write { guard: usize },
    Wait { halves: u32 },
    Expire,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (who, any) = (0..OWNERS, 0..1_000_usize);
    let op = prop_oneof![
        6 => (who.clone(), any.clone()).prop_map(|(who, mode)| Op::Try { who, mode }),
        3 => (who, any.clone()).prop_map(|(who, mode)| Op::Timed { who, mode }),
        2 => any.clone().prop_map(|guard| Op::Enter { guard }),
        4 => any.clone().prop_map(|guard| Op::Release { guard }),
        2 => any.clone().prop_map(|guard| Op::Drop { guard }),
        4 => any.prop_map(|guard| Op::Write { guard }),
        3 => (1..8_u32).prop_map(|halves| Op::Wait { halves }),
        2 => Just(Op::Expire),
    ];
    proptest::collection::vec(op, 1..50)
}

/// One client and what the model makes of it.
struct Run {
    rules: Rules,
    locks: Locks,
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    owners: Vec<Owner>,
    /// Each guard, and the index of its hold in the model.
    guards: Vec<(Guard, usize)>,
    model: Model,
    /// The largest token that the resource has seen.
    fence: i64,
}

/// How often what happened, so that no run is void.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    granted: u32,
    waited: u32,
    entered: u32,
    busy: u32,
    deadlocks: u32,
    lost: u32,
    refused: u32,
}

impl Run {
    fn new(rules: Rules) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = MemoryStore::new(Arc::clone(&clock));
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (LEASE, LEASE);
        let backend = Arc::new(MemoryBackend::new(&store));
        let locks = Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings).build().unwrap();
        let owners = (0..OWNERS).map(|_| locks.owner()).collect();
        Self { rules, locks, store, clock, owners, guards: Vec::new(), model: Model::new(rules), fence: 0 }
    }

    fn lock(&self, who: usize, mode: Mode) -> Lock {
        let lock = self.locks.lock("model", mode).unwrap().auto_renew(false);
        if self.rules.reentrant { lock.owner(&self.owners[who]).unwrap() } else { lock }
    }

    async fn step(&mut self, op: &Op, tally: &mut Tally) {
        // Not where a millisecond decides.
        while self.model.is_close(self.clock.now()) || self.model.is_close(self.clock.now() + PATIENCE) {
            tokio::time::sleep(Duration::from_millis(130)).await;
        }
        self.model.expire(self.clock.now());
        match *op {
            Op::Try { who, mode } => self.ask(who, mode, None, tally).await,
            Op::Timed { who, mode } => self.ask(who, mode, Some(PATIENCE), tally).await,
            Op::Wait { halves } => tokio::time::sleep(Duration::from_millis(500) * halves).await,
            Op::Expire => tokio::time::sleep(LEASE).await,
            Op::Enter { guard } if !self.guards.is_empty() => self.enter(guard % self.guards.len(), tally),
            Op::Release { guard } if !self.guards.is_empty() => {
                self.release(guard % self.guards.len(), tally).await;
            }
            Op::Drop { guard } if !self.guards.is_empty() => {
                let (guard, hold) = self.guards.swap_remove(guard % self.guards.len());
                drop(guard);
                self.model.leave(hold);
            }
            Op::Write { guard } if !self.guards.is_empty() && self.rules.writes => {
                // With the token it once got, whatever the guard would say of it now.
                let hold = self.guards[guard % self.guards.len()].1;
                let token = self.model.holds[hold].token;
                let taken = token >= self.fence;
                self.fence = self.fence.max(token);
                assert_eq!(taken, self.model.write(hold), "whether the resource takes token {token}");
                tally.refused += u32::from(!taken);
            }
            _ => {}
        }
        // What goes on in the background comes to its end.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    async fn ask(&mut self, who: usize, mode: usize, patience: Option<Duration>, tally: &mut Tally) {
        let modes = (self.rules.modes)();
        let mode = modes[mode % modes.len()];
        let (lock, now) = (self.lock(who, mode), self.clock.now());
        let answer = self.model.ask(who, mode, now, patience.unwrap_or_default());
        let got = match patience {
            None => lock.try_acquire().await,
            Some(patience) => lock.acquire_timeout(patience).await,
        };
        self.model.expire(self.clock.now());
        match (answer, got) {
            (Answer::Granted(at), Ok(Some(guard))) => {
                tally.granted += 1;
                tally.waited += u32::from(at > now);
                // The one renewal that follows a push.
                let behind = if at > now { LEASE / 24 } else { Duration::ZERO };
                tokio::time::sleep(behind + Duration::from_millis(5)).await;
                let (until, token) = (guard.deadline(), guard.token().unwrap().get());
                let late = until.saturating_since(at + BELIEVED);
                let latest = behind + Duration::from_millis(20);
                assert!(until >= at + BELIEVED && late < latest, "{until:?} for {at:?}");
                assert!(token > self.model.token, "token {token} after {}", self.model.token);
                self.model.token = token;
                let ends = until + (LEASE - BELIEVED);
                self.model.holds.push(Hold {
                    who,
                    mode,
                    token,
                    until,
                    ends,
                    guards: 1,
                    alive: true,
                    stored: true,
                });
                self.guards.push((guard, self.model.holds.len() - 1));
            }
            (Answer::Entered(hold), Ok(Some(guard))) => {
                tally.entered += 1;
                self.model.holds[hold].guards += 1;
                self.guards.push((guard, hold));
            }
            (Answer::Busy, Ok(None)) => {
                tally.busy += 1;
                let waited = self.clock.now().saturating_since(now);
                assert_eq!(waited.as_millis() / 10, patience.unwrap_or_default().as_millis() / 10, "gave up");
            }
            (Answer::WouldDeadlock, Err(error)) if error.kind() == ErrorKind::WouldDeadlock => {
                tally.deadlocks += 1;
            }
            (answer, got) => panic!("owner {who} asks for {mode}: {got:?}, and the model says {answer:?}"),
        }
    }

    fn enter(&mut self, guard: usize, tally: &mut Tally) {
        let (guard, hold) = &self.guards[guard];
        let hold = *hold;
        match guard.reenter() {
            Ok(guard) => {
                tally.entered += 1;
                assert!(self.model.holds[hold].alive, "entered what is lost");
                self.model.holds[hold].guards += 1;
                self.guards.push((guard, hold));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost);
                assert!(!self.model.holds[hold].alive, "{error}");
            }
        }
    }

    async fn release(&mut self, guard: usize, tally: &mut Tally) {
        let (guard, hold) = self.guards.swap_remove(guard);
        let alive = self.model.holds[hold].alive;
        let last = self.model.leave(hold);
        match guard.release().await {
            Ok(()) => assert!(alive || !last, "gave back what was lost"),
            Err(error) => {
                tally.lost += 1;
                assert_eq!(error.kind(), ErrorKind::Lost);
                assert!(!alive && last, "{error}");
            }
        }
    }

    /// Every guard says what the model says, and the store has as many holders.
    async fn check(&mut self) {
        if self.model.is_close(self.clock.now()) {
            return;
        }
        self.model.expire(self.clock.now());
        for (guard, hold) in &self.guards {
            let hold = &self.model.holds[*hold];
            assert_eq!(guard.is_held(), hold.alive, "{guard:?}, and the model has {hold:?}");
            assert_eq!(guard.token().ok().map(|token| token.get()), hold.alive.then_some(hold.token));
            assert_eq!(guard.deadline(), if hold.alive { hold.until } else { Timestamp::default() });
        }
        let stored = self.model.holds.iter().filter(|hold| hold.stored);
        let mut tokens: Vec<_> = stored.map(|hold| hold.token).collect();
        tokens.sort_unstable();
        let line = self.locks.inspect("model").await.unwrap();
        assert_eq!(line.waiters.len(), 0, "nobody waits");
        assert_eq!(line.holders.iter().map(|holder| holder.token.get()).collect::<Vec<_>>(), tokens);
    }

    async fn end(mut self) {
        self.guards.clear();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!((self.locks.pending(), self.store.names(), self.store.waits()), (0, 0, 0), "left behind");
    }
}

fn sequences(rules: Rules, enough: impl Fn(Tally) -> bool) {
    let volume = std::env::var("ONELOCK_VOLUME").ok().and_then(|text| text.parse().ok()).unwrap_or(1_u32);
    let cases = SEQUENCES * volume.clamp(1, 100);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let tally = std::cell::RefCell::new(Tally::default());
    let outcome = TestRunner::new(config).run(&ops(), |ops| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (mut run, mut seen) = (Run::new(rules), *tally.borrow());
            for op in &ops {
                run.step(op, &mut seen).await;
                run.check().await;
            }
            run.end().await;
            *tally.borrow_mut() = seen;
        });
        Ok(())
    });
    let tally = tally.into_inner();
    println!("{tally:?}");
    // The smallest sequence that fails, and why.
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(enough(tally), "too little has happened: {tally:?}");
}

fn contended(tally: Tally) -> bool {
    tally.granted > 300 && tally.waited > 0 && tally.busy > 100 && tally.lost > 30
}

#[test]
fn an_owner_aware_mutex() {
    sequences(reference::MUTEX, contended);
}

#[test]
fn a_fenced_mutex() {
    sequences(reference::FENCED, |tally| contended(tally) && tally.refused > 5);
}

#[test]
fn a_reentrant_mutex() {
    sequences(reference::REENTRANT, |tally| contended(tally) && tally.entered > 100);
}

#[test]
fn a_semaphore() {
    sequences(reference::SEMAPHORE, contended);
}

#[test]
fn a_read_write_lock() {
    sequences(reference::READ_WRITE, |tally| contended(tally) && tally.deadlocks > 20);
}
