//! Contenders of one name, each a client of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{Effort, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Ask, Client, Failure, LEASE, Lock, Mode, Subject};
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
}

impl Habit {
    /// Takes it, gives it back at once, and asks again.
    pub(super) fn busy(mode: Mode, fair: bool) -> Self {
        Self { mode, fair, hold: Duration::ZERO, think: Duration::ZERO }
    }
}

/// What happened.
pub(super) struct Crowd {
    pub(super) trace: Trace,
    /// Requests that the server counted, per grant.
    pub(super) requests: Option<f64>,
    /// The clients' processor time, as a share of a core.
    pub(super) share: f64,
}

/// Lets one contender for each of `habits` work.
pub(super) async fn crowd(
    workload: &str,
    subject: &Arc<dyn Subject>,
    habits: &[Habit],
    effort: &Effort,
) -> Result<Crowd, Failure> {
    let name = fresh_name(workload);
    let clients = clients(subject, habits.len(), LEASE).await?;
    let mut locks = Vec::new();
    for (client, habit) in clients.iter().zip(habits) {
        let lock = client.prepare(&Ask { name: &name, mode: habit.mode, fair: habit.fair })?;
        // The first request of a connection may bring others with it.
        lock.take().await?.release().await?;
        locks.push(lock);
    }
    let before = subject.served().await?;
    let all_there = Arc::new(Barrier::new(habits.len()));
    let from = Instant::now() + effort.warm_up;
    let until = from + effort.time;
    let mut tasks = JoinSet::new();
    for (contender, (lock, habit)) in locks.into_iter().zip(habits).enumerate() {
        tasks.spawn(contend(contender, lock, *habit, until, Arc::clone(&all_there)));
    }
    tokio::time::sleep_until(from.into()).await;
    let stretch = Stretch::begin();
    tokio::time::sleep_until(until.into()).await;
    let share = stretch.share();
    let mut turns = Vec::new();
    while let Some(task) = tasks.join_next().await {
        turns.extend(task??);
    }
    let requests = per_operation(before, subject.served().await?, turns.len() as u64);
    close(clients).await?;
    Ok(Crowd { trace: Trace::new(turns, habits.len(), from, until), requests, share })
}

/// So many clients, connected side by side but not all at once.
pub(super) async fn clients(
    subject: &Arc<dyn Subject>,
    count: usize,
    lease: Duration,
) -> Result<Vec<Arc<dyn Client>>, Failure> {
    let mut clients = Vec::with_capacity(count);
    while clients.len() < count {
        let some = (count - clients.len()).min(8);
        clients.extend(try_join_all((0..some).map(|_| subject.connect(lease))).await?);
    }
    Ok(clients)
}

pub(super) async fn close(clients: Vec<Arc<dyn Client>>) -> Result<(), Failure> {
    try_join_all(clients.iter().map(|client| client.close())).await?;
    Ok(())
}

pub(super) async fn contend(
    contender: usize,
    lock: Arc<dyn Lock>,
    habit: Habit,
    until: Instant,
    all_there: Arc<Barrier>,
) -> Result<Vec<Turn>, Failure> {
    let mut turns = Vec::new();
    all_there.wait().await;
    loop {
        let asked = Instant::now();
        if asked >= until {
            return Ok(turns);
        }
        let held = lock.take().await?;
        let granted = Instant::now();
        pass(habit.hold).await;
        let leaving = Instant::now();
        held.release().await?;
        turns.push(Turn { contender, asked, granted, leaving, left: Instant::now() });
        pass(habit.think).await;
        // A store that answers at once would never let the others in.
        tokio::task::yield_now().await;
    }
}

async fn pass(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl Crowd {
    /// A sample of the waits of the contenders that `whose` picks, with what every crowd tells.
    pub(super) fn sample(&self, whose: impl Fn(usize) -> bool) -> Result<Sample, Failure> {
        let mut latencies = Latencies::new()?;
        for turn in self.trace.turns().filter(|turn| whose(turn.contender)) {
            latencies.add(turn.granted - turn.asked);
        }
        Ok(self.sample_of(latencies))
    }

    /// A sample of these latencies, with what every crowd tells.
    pub(super) fn sample_of(&self, latencies: Latencies) -> Sample {
        Sample::of(latencies)
            .with(Metric::Rate, self.trace.rate())
            .with(Metric::Jain, self.trace.jain())
            .with(Metric::ServerRequests, self.requests)
            .with(Metric::ClientCpu, self.share)
    }

    /// What an exclusive lock tells beside that.
    pub(super) fn exclusive(&self, sample: Sample) -> Sample {
        let sample = sample
            .with(Metric::OwnerChanges, self.trace.changes_per_second())
            .with(Metric::Inversions, self.trace.inversions())
            .with(Metric::InUse, self.trace.in_use());
        match self.trace.overlaps() {
            0 => sample,
            count => sample.remark(format!("granted {count} times while another held it")),
        }
    }
}
