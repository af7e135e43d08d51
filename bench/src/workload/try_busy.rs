use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Ask, Failure, LEASE, Need, Subject};

pub(super) struct TryBusy;

#[async_trait]
impl Workload for TryBusy {
    fn id(&self) -> &'static str {
        "try-busy"
    }

    fn about(&self) -> &'static str {
        "One client holds a lock; another tries it over and over and is told that it is busy."
    }

    fn operation(&self) -> &'static str {
        "try"
    }

    fn latency(&self) -> Option<&'static str> {
        Some("of one try")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(1)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Try]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.id());
        let (holder, client) = (subject.connect(LEASE).await?, subject.connect(LEASE).await?);
        let held = holder.prepare(&Ask::exclusive(&name))?.take().await?;
        let lock = client.prepare(&Ask::exclusive(&name))?;
        let refused = async || match lock.try_take().await? {
            None => Ok(()),
            Some(_) => Err(Failure::from("it was granted twice")),
        };
        let warm = Instant::now() + effort.warm_up;
        while Instant::now() < warm {
            refused().await?;
        }
        let mut latencies = Latencies::new()?;
        let before = subject.served().await?;
        let stretch = Stretch::begin();
        let end = stretch.began() + effort.time;
        let mut last = stretch.began();
        while last < end {
            refused().await?;
            let now = Instant::now();
            latencies.add(now - last);
            last = now;
            tokio::task::coop::consume_budget().await;
        }
        let (seconds, share) = (stretch.seconds(), stretch.share());
        let requests = per_operation(before, subject.served().await?, latencies.count());
        held.release().await?;
        client.close().await?;
        holder.close().await?;
        let rate = latencies.count() as f64 / seconds;
        Ok(Sample::of(latencies)
            .with(Metric::Rate, rate)
            .with(Metric::ClientCpu, share)
            .with(Metric::ServerRequests, requests))
    }
}
