//! Contenders, each with a lock and a client of its own, or with a lock of its own on a client that all share.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use onelock::{BootClock, Clock as _, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Task;
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Client, Failure, LEASE, Lock, LockSpec, Mode, Subject};
use crate::trace::{Trace, Turn};

/// What a contender does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Habit {
    pub(super) mode: Mode,
    pub(super) fair: bool,
    /// How long it holds.
    pub(super) hold: Duration,
    /// How long it stays away.
    pub(super) think: Duration,
    /// Nobody else wants its lock.
    pub(super) alone: bool,
}

impl Habit {
    /// Takes it, gives it back at once, and asks again.
    pub(super) const BUSY: Self =
        Self { mode: Mode::Exclusive, fair: true, hold: Duration::ZERO, think: Duration::ZERO, alone: false };
}

/// What happened.
pub(super) struct Crowd {
    pub(super) trace: Trace,
    /// Requests that the server counted, per grant.
    pub(super) requests: Option<f64>,
    /// The clients' processor time, as a share of a core.
    pub(super) share: f64,
}

/// Lets one contender for each of `habits` work, all for one lock.
pub(super) async fn crowd(task: &Task, habits: &[Habit]) -> Result<Crowd, Failure> {
    let clients = clients(&task.subject, habits.len(), LEASE).await?;
    let mut locks = Vec::new();
    for (client, habit) in clients.iter().zip(habits) {
        let lock = client.prepare(&LockSpec { name: &task.name, mode: habit.mode, fair: habit.fair })?;
        // The first request of a connection may bring others with it.
        lock.take().await?.release().await?;
        locks.push((lock, *habit));
    }
    let crowd = all_at_once(task, locks).await?;
    close(clients).await?;
    Ok(crowd)
}

/// Lets a contender for each of the locks work.
pub(super) async fn all_at_once(task: &Task, locks: Vec<(Arc<dyn Lock>, Habit)>) -> Result<Crowd, Failure> {
    let count = locks.len();
    // All of them are counted, also those that warm up: so no request is cut in half.
    let before = task.served().await?;
    let all_there = Arc::new(Barrier::new(count));
    let from = BootClock.now() + task.effort.warm_up;
    let until = from + task.effort.time;
    let mut tasks = JoinSet::new();
    for (contender, (lock, habit)) in locks.into_iter().enumerate() {
        let all_there = Arc::clone(&all_there);
        tasks.spawn(async move {
            all_there.wait().await;
            contend(contender, &*lock, habit, until).await
        });
    }
    let begin = tokio::time::Instant::now() + task.effort.warm_up;
    tokio::time::sleep_until(begin).await;
    let stretch = Stretch::begin();
    tokio::time::sleep_until(begin + task.effort.time).await;
    let share = stretch.share();
    let mut turns = Vec::new();
    while let Some(task) = tasks.join_next().await {
        turns.extend(task??);
    }
    let requests = task.served_since(before).await?.map(|requests| requests / turns.len() as f64);
    Ok(Crowd { trace: Trace::new(turns, count, from, until), requests, share })
}

/// So many clients, connected side by side but not all at once.
pub(super) async fn clients(
    subject: &Arc<dyn Subject>,
    count: usize,
    lease: Duration,
) -> Result<Vec<Arc<dyn Client>>, Failure> {
    stream::iter(0..count).map(|_| subject.connect(lease)).buffered(8).try_collect().await
}

pub(super) async fn close(clients: Vec<Arc<dyn Client>>) -> Result<(), Failure> {
    try_join_all(clients.iter().map(|client| client.close())).await?;
    Ok(())
}

pub(super) async fn contend(
    contender: usize,
    lock: &dyn Lock,
    habit: Habit,
    until: Timestamp,
) -> Result<Vec<Turn>, Failure> {
    let mut turns = Vec::new();
    loop {
        let asked = BootClock.now();
        if asked >= until {
            return Ok(turns);
        }
        let held = lock.take().await?;
        let granted = BootClock.now();
        pass(habit.hold).await;
        let leaving = BootClock.now();
        held.release().await?;
        turns.push(Turn { contender, asked, granted, leaving, left: BootClock.now() });
        pass(habit.think).await;
        // A store that answers at once would never let the others in, or anything else.
        if habit.alone {
            tokio::task::coop::consume_budget().await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

async fn pass(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl Crowd {
    /// A sample of these latencies of its turns, with what every crowd tells.
    pub(super) fn sample(&self, latencies: impl Iterator<Item = Duration>) -> Result<Sample, Failure> {
        Ok(Sample::of(Latencies::of(latencies)?)
            .with(Metric::Rate, self.trace.rate())
            .with(Metric::Jain, self.trace.jain())
            .with(Metric::ServerRequests, self.requests)
            .with(Metric::ClientCpu, self.share))
    }

    /// How long those that `whose` picks waited.
    pub(super) fn waits(&self, whose: impl Fn(usize) -> bool) -> impl Iterator<Item = Duration> {
        let turns = self.trace.turns().filter(move |turn| whose(turn.contender));
        turns.map(|turn| turn.granted.saturating_since(turn.asked))
    }

    /// The same of a lock that one has at a time, and what that tells beside it.
    pub(super) fn exclusive(&self, latencies: impl Iterator<Item = Duration>) -> Result<Sample, Failure> {
        let sample = self
            .sample(latencies)?
            .with(Metric::OwnerChanges, self.trace.changes_per_second())
            .with(Metric::Inversions, self.trace.inversions())
            .with(Metric::InUse, self.trace.in_use());
        Ok(match self.trace.overlaps() {
            0 => sample,
            count => sample.remark(format!("granted {count} times while another held it")),
        })
    }
}
