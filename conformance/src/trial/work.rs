//! What one client does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onelock_core::client::Locks;
use onelock_core::client::guard::{Guard, LossReason};
use onelock_core::client::lock::Lock;
use onelock_core::{Backend, Clock, ErrorKind, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Plan;
use super::event::{Event, How, Journal};
use super::resource::Pen;
use crate::ctx::{client_of, cut_at, patient};
use crate::ensure;
use crate::history::nanos;
use crate::record::{Counted, Notes};
use crate::rng::Rng;
use crate::verdict::Verdict;

/// The lock of the resource.
const RESOURCE: u32 = 0;
/// Locks that are taken for a moment.
const QUICK: std::ops::Range<u32> = 1..4;
/// Locks that are held for long: two clients share one.
const KEPT: std::ops::Range<u32> = 10..14;
/// The lock of the election.
pub(super) const LEAD: u32 = 20;
/// How many tasks of a client take locks for a moment.
const TASKS: u32 = 3;
/// A short hold is shorter.
const MOMENT: Duration = Duration::from_millis(2);
/// The work between two awaits.
pub(super) const CHUNK: Duration = Duration::from_millis(1);
/// The pause of a task whose store did not answer.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn name(lock: u32) -> String {
    format!("trial-{lock}")
}

/// The names of all locks of a trial.
pub fn names() -> impl Iterator<Item = String> {
    [RESOURCE, LEAD].into_iter().chain(QUICK).chain(KEPT).map(name)
}

/// A client at work.
pub struct Work {
    pub(super) locks: Locks,
    notes: Arc<Notes>,
    pub(super) plan: Plan,
    pub(super) number: u32,
    pub(super) journal: Arc<Journal>,
    pub(super) holds: AtomicU64,
    pub(super) stop: watch::Receiver<bool>,
}

/// One hold under way.
struct Hold {
    number: u64,
    guard: Guard,
    /// The last moment at which it was certain.
    until: u64,
}

impl Work {
    /// The work of client `number` over `backend`, written into `journal` until `stop` says so.
    ///
    /// # Errors
    /// When the plan's leases cannot be had on this store.
    pub fn new(
        (backend, clock): (Arc<dyn Backend>, Arc<dyn Clock>),
        (plan, number): (Plan, u32),
        journal: Arc<Journal>,
        stop: watch::Receiver<bool>,
    ) -> Verdict<Arc<Self>> {
        // Some clients outlive the faults that end the leases of others; and who is promoted has to get a holder's lease in
        // time where a waiter's is shorter.
        let (lease, waits) = match (plan.worked, number % 2) {
            (true, 1) => (plan.lease * 4, plan.lease * 4),
            (true, _) => (plan.lease, plan.lease * 2 / 3),
            (false, _) => (plan.lease, plan.lease),
        };
        let notes = Arc::new(Notes::default());
        let locks = client_of(Counted::new(backend, &notes), clock, lease, waits)?;
        Ok(Arc::new(Self { locks, notes, plan, number, journal, holds: AtomicU64::new(0), stop }))
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// When something fails that no fault explains.
    pub async fn run(self: Arc<Self>, seed: u64) -> Verdict {
        let mut rng = Rng::new(seed);
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            tasks.spawn(Arc::clone(&self).take_for_a_moment(rng.fork()));
        }
        tasks.spawn(Arc::clone(&self).write_the_resource(rng.fork()));
        tasks.spawn(Arc::clone(&self).campaign(rng.fork()));
        tasks.spawn(Arc::clone(&self).observe());
        if self.plan.worked {
            tasks.spawn(Arc::clone(&self).work_for_long(rng.fork()));
        } else {
            tasks.spawn(Arc::clone(&self).hold_for_long(rng.fork()));
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    pub(super) fn stopped(&self) -> bool {
        *self.stop.borrow()
    }

    async fn take_for_a_moment(self: Arc<Self>, mut rng: Rng) -> Verdict {
        while !self.stopped() {
            let number = QUICK.start + u32::try_from(rng.below(u64::from(QUICK.end - QUICK.start)))?;
            let lock = self.lock(number, &mut rng)?;
            let Some(mut hold) = self.acquire(&lock, number, &mut rng).await? else { continue };
            let time = if rng.below(4) == 0 { rng.time(MOMENT) } else { Duration::ZERO };
            if self.plan.worked {
                self.work(&hold, time).await?;
            } else {
                tokio::time::sleep(time).await;
                self.look(&mut hold);
            }
            self.end(hold, rng.below(16) == 0).await?;
        }
        Ok(())
    }

    /// The last lock takes all modes; on the others the order of the line can be judged.
    fn lock(&self, number: u32, rng: &mut Rng) -> Verdict<Lock> {
        let text = name(number);
        let any = self.plan.modes && number + 1 == QUICK.end;
        Ok(match rng.below(if any { 4 } else { 1 }) {
            0 => self.locks.mutex(text)?,
            1 => self.locks.rwlock(text)?.read(),
            2 => self.locks.semaphore(text, 2)?,
            _ => self.locks.semaphore(text, 3)?,
        })
    }

    /// Takes a lock in one of many ways; `None` when it did not come to that.
    async fn acquire(&self, lock: &Lock, number: u32, rng: &mut Rng) -> Verdict<Option<Hold>> {
        let asked = nanos(self.locks.clock().now());
        let limit = self.plan.lease * 2;
        let taken = match rng.below(12) {
            0 => lock.try_acquire().await,
            1 => lock.acquire_timeout(rng.time(self.plan.lease / 4)).await,
            2 if self.plan.fifo => lock.clone().unfair().acquire_timeout(rng.time(self.plan.lease / 4)).await,
            3 => match cut_at(lock.acquire(), rng.time(Duration::from_millis(4))).await {
                Some(done) => done.map(Some),
                None => {
                    self.journal.write(&Event::Cut)?;
                    return Ok(None);
                }
            },
            _ => lock.acquire_timeout(limit).await,
        };
        let guard = match taken {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(None),
            Err(error) => {
                let explained = error.is_retryable() || error.kind() == ErrorKind::Lost;
                ensure!(explained, "no fault explains this error: {error}");
                tokio::time::sleep(PAUSE).await;
                return Ok(None);
            }
        };
        let (from, token) = (nanos(self.locks.clock().now()), guard.token());
        // Lost before anybody could look: there is nothing to write down.
        if !guard.is_held() {
            return Ok(None);
        }
        let token = match token {
            Ok(token) => token.get(),
            Err(_) if !self.plan.fencing => 0,
            Err(_) => return Ok(None),
        };
        let hold = self.holds.fetch_add(1, Ordering::Relaxed);
        let mode = lock.mode().to_string();
        self.journal.write(&Event::Held { hold, lock: number, mode, token, asked, from })?;
        Ok(Some(Hold { number: hold, guard, until: from }))
    }

    /// Asks whether the hold is good, at a moment that was read before.
    fn look(&self, hold: &mut Hold) -> bool {
        let now = nanos(self.locks.clock().now());
        let held = hold.guard.is_held();
        if held {
            hold.until = now;
        }
        held
    }

    async fn end(&self, hold: Hold, drop_it: bool) -> Verdict {
        let Hold { number, guard, until } = hold;
        let how = if drop_it {
            drop(guard);
            How::Dropped
        } else {
            match guard.release().await {
                Ok(()) => How::Released,
                Err(error) if error.kind() == ErrorKind::Lost => How::Lost,
                Err(_) => How::Unclear,
            }
        };
        self.journal.write(&Event::Over { hold: number, until, how })
    }

    /// Reads, waits and writes; every third time longer than the lease, and without a look at the guard before it writes.
    async fn write_the_resource(self: Arc<Self>, mut rng: Rng) -> Verdict {
        let mut pen = Pen::connect(self.plan.resource).await?;
        let lock = self.locks.mutex(name(RESOURCE))?.auto_renew(false).retry(patient());
        let mut count = 0;
        while !self.stopped() {
            let Some(mut hold) = self.acquire(&lock, RESOURCE, &mut rng).await? else { continue };
            let token = hold.guard.token().map_or(0, onelock_core::FencingToken::get);
            if token == 0 && self.plan.fencing {
                self.end(hold, false).await?;
                continue;
            }
            let read = pen.read(token).await?;
            self.look(&mut hold);
            let time = match rng.below(3) {
                0 => self.plan.lease + rng.time(self.plan.lease / 2),
                _ => rng.time(self.plan.lease / 16),
            };
            tokio::time::sleep(time).await;
            count += 1;
            // Unique in the trial: also for a client that took the place of a killed one.
            let item = (u64::from(std::process::id()) << 32) + (u64::from(self.number) << 24) + count;
            let taken = pen.write(token, item, read).await?;
            self.journal.write(&Event::Wrote { item, taken })?;
            self.look(&mut hold);
            self.end(hold, false).await?;
        }
        Ok(())
    }

    /// Holds over several leases, and notes how long after its deadline a loss is told.
    async fn hold_for_long(self: Arc<Self>, mut rng: Rng) -> Verdict {
        let number = KEPT.start + (self.number / 2) % (KEPT.end - KEPT.start);
        let lock = self.locks.mutex(name(number))?;
        while !self.stopped() {
            let Some(mut hold) = self.acquire(&lock, number, &mut rng).await? else { continue };
            let mut rest = rng.time(self.plan.lease * 3);
            let mut deadline = hold.guard.deadline();
            while !rest.is_zero() && !self.stopped() {
                let step = rest.min(self.plan.lease / 8);
                rest -= step;
                if let Ok(reason) = tokio::time::timeout(step, told(&hold.guard, &mut deadline)).await {
                    let (at, deadline) = (nanos(self.locks.clock().now()), nanos(deadline));
                    if reason == LossReason::Expired {
                        self.journal.write(&Event::Told { deadline, at })?;
                    }
                    break;
                }
                if self.look(&mut hold) {
                    self.journal.write(&Event::Seen { hold: hold.number, at: hold.until })?;
                }
            }
            self.end_and_count(hold).await?;
        }
        Ok(())
    }

    /// Ends a long hold, and writes down what was asked of the store meanwhile.
    async fn end_and_count(&self, hold: Hold) -> Verdict {
        self.end(hold, false).await?;
        let (calls, unclear) = self.notes.take();
        self.journal.write(&Event::Calls { calls, unclear })
    }

    /// Works under locks whose holds end in every way: given back in time, by the lease, by the longest hold, and with a
    /// lock-delay behind them.
    async fn work_for_long(self: Arc<Self>, mut rng: Rng) -> Verdict {
        let number = KEPT.start + (self.number / 2) % (KEPT.end - KEPT.start);
        let (locks, lease) = (&self.locks, self.plan.lease);
        while !self.stopped() {
            let lock = locks.mutex(name(number))?;
            let lock = match rng.below(if self.plan.delay { 4 } else { 3 }) {
                0 => lock,
                1 => lock.auto_renew(false),
                2 => lock.max_hold(lease / 2)?,
                _ => lock.lock_delay(lease / 4)?.auto_renew(false),
            };
            let Some(hold) = self.acquire(&lock, number, &mut rng).await? else { continue };
            self.work(&hold, rng.time(lease * 2)).await?;
            self.end_and_count(hold).await?;
        }
        Ok(())
    }

    /// Works for `time`, or until the end of the hold stops it.
    async fn work(&self, hold: &Hold, time: Duration) -> Verdict {
        let clock = self.locks.clock();
        let (end, mut deadline) = (clock.now() + time, hold.guard.deadline());
        let worked = hold.guard.run(async {
            while clock.now() < end && !self.stopped() {
                deadline = deadline.max(hold.guard.deadline());
                tokio::time::sleep(CHUNK).await;
            }
        });
        let stopped = worked.await.is_err();
        let (deadline, until) = (nanos(deadline), nanos(clock.now()));
        self.journal.write(&Event::Worked { hold: hold.number, deadline, until, stopped })
    }
}

/// Waits until the loss is told, and keeps the last deadline there was.
async fn told(guard: &Guard, deadline: &mut Timestamp) -> LossReason {
    while let Some(next) = guard.renewed(*deadline).await {
        *deadline = next;
    }
    guard.lost().await
}
