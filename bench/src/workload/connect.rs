use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{About, Effort, Size, Workload, fresh_name, per_operation};
use crate::data::Metric;
use crate::measure::{Latencies, Sample};
use crate::subject::{Ask, Failure, LEASE, Subject};

pub(super) struct Connect;

#[async_trait]
impl Workload for Connect {
    fn about(&self) -> About {
        About::new(
            "connect",
            "A new client connects and takes its first lock, a free one; then it gives it back and ends.",
        )
        .operation("connect, acquire, release and close")
        .latency("from the call of connect to the grant")
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.about().id);
        let mut latencies = Latencies::new()?;
        let before = subject.served().await?;
        for _ in 0..effort.connections {
            let began = Instant::now();
            let client = subject.connect(LEASE).await?;
            let held = client.prepare(&Ask::exclusive(&name))?.take().await?;
            latencies.add(began.elapsed());
            held.release().await?;
            client.close().await?;
        }
        let requests = per_operation(before, subject.served().await?, latencies.count());
        Ok(Sample::of(latencies).with(Metric::ServerRequests, requests))
    }
}
