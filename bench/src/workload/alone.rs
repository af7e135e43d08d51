//! One client, one operation after the other.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{About, Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch, figure};
use crate::subject::{Ask, Failure, Held, LEASE, Lock, Need, Subject};

/// Repeats `operation` for as long as the effort says, after it has warmed up, and times each; one is `parts` operations.
async fn repeated<F: Future<Output = Result<(), Failure>> + Send>(
    subject: &dyn Subject,
    effort: &Effort,
    parts: u32,
    mut operation: impl FnMut() -> F + Send,
) -> Result<Sample, Failure> {
    let warm = Instant::now() + effort.warm_up;
    while Instant::now() < warm {
        operation().await?;
    }
    let mut latencies = Latencies::new()?;
    let before = subject.served().await?;
    let stretch = Stretch::begin();
    let end = stretch.began() + effort.time;
    let mut last = stretch.began();
    while last < end {
        operation().await?;
        let now = Instant::now();
        latencies.add((now - last) / parts);
        last = now;
        // A store that answers at once would never let anything else in.
        tokio::task::coop::consume_budget().await;
    }
    let (seconds, share) = (stretch.seconds(), stretch.share());
    let count = latencies.count() * u64::from(parts);
    let requests = per_operation(before, subject.served().await?, count);
    Ok(Sample::of(latencies)
        .with(Metric::Rate, count as f64 / seconds)
        .with(Metric::ClientCpu, share)
        .with(Metric::ServerRequests, requests))
}

pub(super) struct Cycle;

/// How many cycles go through the tap.
const TAPPED: usize = 50;

#[async_trait]
impl Workload for Cycle {
    fn about(&self) -> About {
        About::new(
            "cycle",
            "One client takes a free lock and gives it back, over and over. Nobody else wants it.",
        )
        .latency("from the call of acquire to the answer to the release")
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name("cycle");
        let client = subject.connect(LEASE).await?;
        let lock = client.prepare(&Ask::exclusive(&name))?;
        let sample = repeated(&**subject, effort, 1, || cycle(&*lock)).await?;
        client.close().await?;
        Ok(sample.with(Metric::RoundTrips, tapped(&**subject, &name).await?))
    }
}

async fn cycle(lock: &dyn Lock) -> Result<(), Failure> {
    lock.take().await?.release().await
}

/// Round trips of a cycle, the median of some.
async fn tapped(subject: &dyn Subject, name: &str) -> Result<Option<f64>, Failure> {
    let Some((client, tap)) = subject.connect_tapped(LEASE).await? else { return Ok(None) };
    let lock = client.prepare(&Ask::exclusive(name))?;
    // The first ones prepare statements and load scripts.
    for _ in 0..5 {
        cycle(&*lock).await?;
    }
    let mut trips = Vec::with_capacity(TAPPED);
    for _ in 0..TAPPED {
        let before = tap.trips();
        cycle(&*lock).await?;
        trips.push((tap.trips() - before) as f64);
    }
    client.close().await?;
    Ok(figure(trips).map(|trips| trips.median))
}

pub(super) struct TryBusy;

#[async_trait]
impl Workload for TryBusy {
    fn about(&self) -> About {
        let about = "One client holds a lock; another tries it over and over and finds it busy.";
        About::new("try-busy", about).operation("try").latency("of one try").needs(&[Need::Try])
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name("try-busy");
        let (holder, client) = (subject.connect(LEASE).await?, subject.connect(LEASE).await?);
        let held = holder.prepare(&Ask::exclusive(&name))?.take().await?;
        let lock = client.prepare(&Ask::exclusive(&name))?;
        let sample = repeated(&**subject, effort, 1, || refused(&*lock)).await?;
        held.release().await?;
        client.close().await?;
        holder.close().await?;
        Ok(sample)
    }
}

async fn refused(lock: &dyn Lock) -> Result<(), Failure> {
    match lock.try_take().await? {
        None => Ok(()),
        Some(_) => Err("it was granted twice".into()),
    }
}

pub(super) struct Reentry;

/// How many are timed together: one takes about as long as reading the clock.
const TOGETHER: u32 = 100;

#[async_trait]
impl Workload for Reentry {
    fn about(&self) -> About {
        About::new("reentry", "A client that holds a lock takes it again for the same owner, and steps out.")
            .operation("enter again and step out")
            .latency("of entering again and stepping out, the mean of 100 in a row")
            .needs(&[Need::Reentry])
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let client = subject.connect(LEASE).await?;
        let held = client.prepare(&Ask::exclusive(&fresh_name("reentry")))?.take().await?;
        let sample = repeated(&**subject, effort, TOGETHER, || again(&*held)).await?;
        held.release().await?;
        client.close().await?;
        Ok(sample)
    }
}

async fn again(held: &dyn Held) -> Result<(), Failure> {
    for _ in 0..TOGETHER {
        held.again()?.release().await?;
    }
    Ok(())
}

pub(super) struct RoundTrip;

#[async_trait]
impl Workload for RoundTrip {
    fn about(&self) -> About {
        About::new(
            "round-trip",
            "The driver alone asks the server for the least that it answers, over and over: one bare round trip, by which \
             the time of a hand-over can be divided.",
        )
        .operation("round trip")
        .latency("of one round trip")
        .needs(&[Need::Ping])
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let client = subject.connect(LEASE).await?;
        let ping =
            || async { client.ping().await?.then_some(()).ok_or_else(|| "it has no round trip".into()) };
        let mut sample = repeated(&**subject, effort, 1, ping).await?;
        // What a server counts for it says nothing about locks.
        sample.figures.remove(&Metric::ServerRequests);
        client.close().await?;
        Ok(sample)
    }
}
