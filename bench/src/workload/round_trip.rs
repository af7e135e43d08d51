use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{Effort, Size, Workload};
use crate::data::Metric;
use crate::measure::{Latencies, Sample, Stretch};
use crate::subject::{Failure, LEASE, Need, Subject};

pub(super) struct RoundTrip;

#[async_trait]
impl Workload for RoundTrip {
    fn id(&self) -> &'static str {
        "round-trip"
    }

    fn about(&self) -> &'static str {
        "The driver alone asks the server for the least that it answers, over and over: one bare round trip, by which \
         the time of a hand-over can be divided."
    }

    fn operation(&self) -> &'static str {
        "round trip"
    }

    fn latency(&self) -> Option<&'static str> {
        Some("of one round trip")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(1)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Ping]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let client = subject.connect(LEASE).await?;
        let warm = Instant::now() + effort.warm_up;
        while Instant::now() < warm {
            if !client.ping().await? {
                return Err("it has no bare round trip".into());
            }
        }
        let mut latencies = Latencies::new()?;
        let stretch = Stretch::begin();
        let end = stretch.began() + effort.time;
        let mut last = stretch.began();
        while last < end {
            client.ping().await?;
            let now = Instant::now();
            latencies.add(now - last);
            last = now;
            tokio::task::coop::consume_budget().await;
        }
        let (seconds, share) = (stretch.seconds(), stretch.share());
        client.close().await?;
        let rate = latencies.count() as f64 / seconds;
        Ok(Sample::of(latencies).with(Metric::Rate, rate).with(Metric::ClientCpu, share))
    }
}
