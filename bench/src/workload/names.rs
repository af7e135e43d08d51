use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::{Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Ask, Failure, LEASE, Lock, Need, Subject};

pub(super) struct Names;

#[async_trait]
impl Workload for Names {
    fn id(&self) -> &'static str {
        "names"
    }

    fn about(&self) -> &'static str {
        "The tasks of one client take and give back locks, each a lock of its own, all at once."
    }

    fn latency(&self) -> Option<&'static str> {
        Some("from the call of acquire to the answer to the release")
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        let most = if effort.small { 64 } else { 512 };
        [1, 8, 64, 512].into_iter().filter(|tasks| *tasks <= most).map(Size::of).collect()
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        Vec::new()
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.id());
        let client = subject.connect(LEASE).await?;
        // The first request of a connection may bring others with it.
        client.prepare(&Ask::exclusive(&name))?.take().await?.release().await?;
        let done = Arc::new(AtomicU64::new(0));
        // All of them are counted, also those that warm up: so no request is cut in half.
        let before = subject.served().await?;
        let from = Instant::now() + effort.warm_up;
        let until = from + effort.time;
        let mut tasks = JoinSet::new();
        for task in 0..size.count() {
            let lock = client.prepare(&Ask::exclusive(&format!("{name}-{task}")))?;
            tasks.spawn(work(lock, from, until, Arc::clone(&done)));
        }
        tokio::time::sleep_until(from.into()).await;
        let began = done.load(Ordering::Relaxed);
        let stretch = Stretch::begin();
        tokio::time::sleep_until(until.into()).await;
        let (seconds, share) = (stretch.seconds(), stretch.share());
        let count = done.load(Ordering::Relaxed) - began;
        let mut latencies = Latencies::new()?;
        while let Some(task) = tasks.join_next().await {
            latencies.join(&task??)?;
        }
        let requests = per_operation(before, subject.served().await?, done.load(Ordering::Relaxed));
        client.close().await?;
        Ok(Sample::of(latencies)
            .with(Metric::Rate, count as f64 / seconds)
            .with(Metric::ClientCpu, share)
            .with(Metric::ServerRequests, requests))
    }
}

async fn work(
    lock: Arc<dyn Lock>,
    from: Instant,
    until: Instant,
    done: Arc<AtomicU64>,
) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::new()?;
    loop {
        let began = Instant::now();
        if began >= until {
            return Ok(latencies);
        }
        lock.take().await?.release().await?;
        done.fetch_add(1, Ordering::Relaxed);
        if began >= from {
            latencies.add(began.elapsed());
        }
        tokio::task::coop::consume_budget().await;
    }
}
