use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch, figure};
use crate::subject::{Ask, Failure, LEASE, Lock, Need, Subject};

/// How many cycles go through the tap.
const TAPPED: usize = 50;

pub(super) struct Cycle;

#[async_trait]
impl Workload for Cycle {
    fn id(&self) -> &'static str {
        "cycle"
    }

    fn about(&self) -> &'static str {
        "One client takes a free lock and gives it back, over and over. Nobody else wants it."
    }

    fn latency(&self) -> Option<&'static str> {
        Some("from the call of acquire to the answer to the release")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(1)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        Vec::new()
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.id());
        let client = subject.connect(LEASE).await?;
        let lock = client.prepare(&Ask::exclusive(&name))?;
        let warm = Instant::now() + effort.warm_up;
        while Instant::now() < warm {
            cycle(&*lock).await?;
        }
        let mut latencies = Latencies::new()?;
        let before = subject.served().await?;
        let stretch = Stretch::begin();
        let end = stretch.began() + effort.time;
        let mut last = stretch.began();
        while last < end {
            cycle(&*lock).await?;
            let now = Instant::now();
            latencies.add(now - last);
            last = now;
            // A store that answers at once would never let anything else in.
            tokio::task::coop::consume_budget().await;
        }
        let (seconds, share) = (stretch.seconds(), stretch.share());
        let requests = per_operation(before, subject.served().await?, latencies.count());
        client.close().await?;
        let rate = latencies.count() as f64 / seconds;
        Ok(Sample::of(latencies)
            .with(Metric::Rate, rate)
            .with(Metric::ClientCpu, share)
            .with(Metric::ServerRequests, requests)
            .with(Metric::RoundTrips, tapped(&**subject, &name).await?))
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
