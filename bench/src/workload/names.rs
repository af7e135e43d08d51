use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::{About, Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Ask, Failure, LEASE, Lock, Subject};

pub(super) struct Names;

#[async_trait]
impl Workload for Names {
    fn about(&self) -> About {
        About::new(
            "names",
            "The tasks of one client take and give back locks, each a lock of its own, all at once.",
        )
        .latency("from the call of acquire to the answer to the release")
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        let most = if effort.small { 64 } else { 512 };
        [1, 8, 64, 512].into_iter().filter(|tasks| *tasks <= most).map(Size::of).collect()
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.about().id);
        let client = subject.connect(LEASE).await?;
        // The first request of a connection may bring others with it.
        client.prepare(&Ask::exclusive(&name))?.take().await?.release().await?;
        // All of them are counted, also those that warm up: so no request is cut in half.
        let before = subject.served().await?;
        let from = Instant::now() + effort.warm_up;
        let until = from + effort.time;
        let mut tasks = JoinSet::new();
        for task in 0..size.count() {
            let lock = client.prepare(&Ask::exclusive(&format!("{name}-{task}")))?;
            tasks.spawn(work(lock, from, until));
        }
        tokio::time::sleep_until(from.into()).await;
        let stretch = Stretch::begin();
        tokio::time::sleep_until(until.into()).await;
        let share = stretch.share();
        let (mut latencies, mut all) = (Latencies::new()?, 0);
        while let Some(task) = tasks.join_next().await {
            let (counted, done) = task??;
            latencies.join(&counted)?;
            all += done;
        }
        let requests = per_operation(before, subject.served().await?, all);
        client.close().await?;
        let rate = latencies.count() as f64 / effort.time.as_secs_f64();
        Ok(Sample::of(latencies)
            .with(Metric::Rate, rate)
            .with(Metric::ClientCpu, share)
            .with(Metric::ServerRequests, requests))
    }
}

/// The latencies of what ended between the two moments, and how much was done in all.
async fn work(lock: Arc<dyn Lock>, from: Instant, until: Instant) -> Result<(Latencies, u64), Failure> {
    let (mut latencies, mut all) = (Latencies::new()?, 0);
    let mut last = Instant::now();
    while last < until {
        lock.take().await?.release().await?;
        let now = Instant::now();
        if (from..=until).contains(&now) {
            latencies.add(now - last);
        }
        all += 1;
        tokio::task::coop::consume_budget().await;
        last = Instant::now();
    }
    Ok((latencies, all))
}
