//! A candidate of an election, whose terms end in every way, and an observer of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt as _;
use onelock_core::{Election, Term, Timestamp};

use super::JUDGED;
use super::event::Event;
use super::work::{CHUNK, LEAD, PAUSE, Work, name};
use crate::fail;
use crate::history::nanos;
use crate::rng::Rng;
use crate::runner::panic_on_purpose;
use crate::verdict::{Stop, Verdict};

/// The work of a term. Dropped, for whatever reason, it writes down when that was.
struct AtWork {
    work: Arc<Work>,
    term: Term,
    hold: u64,
    deadline: Timestamp,
}

impl AtWork {
    fn begin(work: &Arc<Work>, term: Term, asked: u64) -> Verdict<Self> {
        let (work, hold) = (Arc::clone(work), work.holds.fetch_add(1, Ordering::Relaxed));
        let (from, mode) = (nanos(work.locks.clock().now()), onelock_core::Mode::Exclusive.to_string());
        let token = if work.plan.fencing { term.token()?.get() } else { 0 };
        work.journal.write(&Event::Held { hold, lock: LEAD, mode, token, asked, from })?;
        Ok(Self { work, term, hold, deadline: Timestamp::default() })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let (deadline, until) = (nanos(self.deadline), nanos(self.work.locks.clock().now()));
        // What cannot be written here cannot be written elsewhere either, and ends the client there.
        let _ = self.work.journal.write(&Event::Worked { hold: self.hold, deadline, until, stopped: false });
        if !self.term.is_leader() {
            let _ = self.work.journal.write(&Event::Deposed);
        }
    }
}

impl Work {
    fn election(&self) -> Verdict<Election> {
        // Whose process stalls for less than is noted must not be judged.
        let election = self
            .locks
            .election(name(LEAD))?
            .note(self.number.to_string())?
            .ttl(self.plan.lease.max(JUDGED))?;
        Ok(election.pause_after_failure(PAUSE).step_down_notice(PAUSE))
    }

    /// Leads again and again. A term ends with its work, by an error or a panic of it, by a step-down, or is lost.
    pub(super) async fn campaign(self: Arc<Self>, mut rng: Rng) -> Verdict {
        let (election, mut stop) = (self.election()?, self.stop.clone());
        // Each term asked after the one before had ended.
        let asked = Arc::new(AtomicU64::new(nanos(self.locks.clock().now())));
        while !self.stopped() {
            let run = election.run(|term| Arc::clone(&self).lead(term, rng.fork(), Arc::clone(&asked)));
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => {}
                ended = AssertUnwindSafe(run).catch_unwind() => if let Ok(Err(error)) = ended {
                    fail!("no fault explains that a candidate ends: {error}");
                },
            }
        }
        Ok(())
    }

    async fn lead(self: Arc<Self>, term: Term, mut rng: Rng, asked: Arc<AtomicU64>) -> Verdict {
        let clock = self.locks.clock();
        let mut at_work = AtWork::begin(&self, term.clone(), asked.load(Ordering::Relaxed))?;
        // Many terms, and some that outlast a fault.
        let longest = if rng.below(2) == 0 { self.plan.lease * 2 } else { self.plan.lease / 8 };
        let (end, way) = (clock.now() + rng.time(longest), rng.below(5));
        while clock.now() < end && !self.stopped() {
            at_work.deadline = at_work.deadline.max(clock.now() + term.remaining());
            asked.store(nanos(clock.now()), Ordering::Relaxed);
            tokio::time::sleep(CHUNK).await;
        }
        match way {
            0 => panic_on_purpose(),
            1 => term.step_down().await,
            2 => return Err(Stop::failed("on purpose")),
            _ => {}
        }
        Ok(())
    }

    /// Writes down who leads.
    pub(super) async fn observe(self: Arc<Self>) -> Verdict {
        let (mut seen, mut stop) = (self.election()?.observe(), self.stop.clone());
        loop {
            let leader = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                leader = seen.next() => leader,
            };
            self.journal.write(&Event::Led { token: leader.map_or(0, |leader| leader.token.get()) })?;
        }
    }
}
