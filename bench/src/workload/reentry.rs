use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Ask, Failure, Held, LEASE, Need, Subject};

/// How many are timed together: one takes about as long as looking at the clock.
const TOGETHER: u32 = 100;

pub(super) struct Reentry;

#[async_trait]
impl Workload for Reentry {
    fn id(&self) -> &'static str {
        "reentry"
    }

    fn about(&self) -> &'static str {
        "A client that holds a lock takes it again for the same owner, and steps out."
    }

    fn operation(&self) -> &'static str {
        "enter again and step out"
    }

    fn latency(&self) -> Option<&'static str> {
        Some("of entering again and stepping out, the mean of 100 in a row")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(1)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Reentry]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.id());
        let client = subject.connect(LEASE).await?;
        let held = client.prepare(&Ask::exclusive(&name))?.take().await?;
        let warm = Instant::now() + effort.warm_up;
        while Instant::now() < warm {
            again(&*held).await?;
        }
        let mut latencies = Latencies::new()?;
        let before = subject.served().await?;
        let stretch = Stretch::begin();
        let end = stretch.began() + effort.time;
        let mut last = stretch.began();
        while last < end {
            again(&*held).await?;
            let now = Instant::now();
            latencies.add((now - last) / TOGETHER);
            last = now;
            tokio::task::coop::consume_budget().await;
        }
        let seconds = stretch.seconds();
        let count = latencies.count() * u64::from(TOGETHER);
        let requests = per_operation(before, subject.served().await?, count);
        held.release().await?;
        client.close().await?;
        Ok(Sample::of(latencies)
            .with(Metric::Rate, count as f64 / seconds)
            .with(Metric::ServerRequests, requests))
    }
}

async fn again(held: &dyn Held) -> Result<(), Failure> {
    for _ in 0..TOGETHER {
        held.again()?.release().await?;
    }
    Ok(())
}
