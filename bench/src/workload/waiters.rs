use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::idle::{drain, wait};
use super::{About, Effort, Size, Workload, fresh_name};
use crate::data::Metric;
use crate::measure::Sample;
use crate::subject::{Ask, Failure, LEASE, Need, Subject};

/// How long the memory must stay as it is before all are taken to wait, and how long that may take.
const STILL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Waiters;

#[async_trait]
impl Workload for Waiters {
    fn about(&self) -> About {
        About::new("waiters", "Many tasks of one client wait for one lock that another client holds: what each of them takes of the client's \
         memory, with its task. (In the memory store the line itself is in it.)").needs(&[Need::Wait, Need::Renewal]).once()
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        Size::only(effort.waiters)
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let Some(memory) = effort.memory else { return Err("nobody counts this program's memory".into()) };
        let name = fresh_name(self.about().id);
        let (holder, client) = (subject.connect(LEASE).await?, subject.connect(LEASE).await?);
        client.prepare(&Ask::exclusive(&name))?.take().await?.release().await?;
        let held = holder.prepare(&Ask::exclusive(&name))?.take().await?;
        let before = memory();
        let waiters = wait(std::slice::from_ref(&client), size.count(), &name)?;
        let after = still(memory).await;
        drain(held, waiters).await?;
        client.close().await?;
        holder.close().await?;
        let each = after.saturating_sub(before) as f64 / size.count() as f64;
        Ok(Sample::default().with(Metric::Memory, each))
    }
}

/// The memory when it has not changed by more than a little for a while: then nobody is on the way any more.
async fn still(memory: fn() -> usize) -> usize {
    let end = Instant::now() + PATIENCE;
    let mut last = (Instant::now(), memory());
    while last.0.elapsed() < STILL && Instant::now() < end {
        tokio::time::sleep(STILL / 50).await;
        let now = memory();
        if now.abs_diff(last.1) > 16 * 1024 {
            last = (Instant::now(), now);
        }
    }
    memory()
}
