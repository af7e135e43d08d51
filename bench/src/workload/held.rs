//! Many locks that one client keeps.

use std::future::ready;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{Size, Task, Workload};
use crate::data::Metric;
use crate::measure::{Sample, Stretch};
use crate::subject::{Failure, Held, LockSpec, Need};

/// How many are taken and given back at once.
const TOGETHER: usize = 64;

pub(super) const HELD: Workload = Workload {
    needs: &[Need::Renewal],
    once: true,
    sizes: |effort| vec![Size::of("", effort.held.0)],
    ..Workload::new(
        "held",
        "One client holds many locks, 10 000 with a lease of 30 s in a full run, and keeps them: what that asks of the \
         server and of the client's processor for a third of the lease, in which each is renewed once, and what each \
         takes of the client's memory. (In the memory store the entry itself is in it.)",
        |task| Box::pin(held(task)),
    )
};

async fn held(task: &Task) -> Result<Sample, Failure> {
    let lease = task.effort.held.1;
    let client = task.subject.connect(lease).await?;
    client.prepare(&LockSpec::exclusive(&task.name))?.take().await?.release().await?;
    let allocated = || task.effort.memory.map(|memory| memory());
    let before = allocated();
    let take = |n| {
        let lock = client.prepare(&LockSpec::exclusive(&format!("{}-{n}", task.name)));
        async move { lock?.take().await }
    };
    let all: Vec<_> =
        stream::iter(0..task.size.tasks).map(take).buffer_unordered(TOGETHER).try_collect().await?;
    let memory = allocated().zip(before).map(|(after, before)| after.saturating_sub(before) as f64);

    let (asked, stretch) = (task.served().await?, Stretch::begin());
    tokio::time::sleep(lease / 3).await;
    let (seconds, share) = (stretch.seconds(), stretch.share());
    let requests = task.served_since(asked).await?;

    // Fails when one of them was lost meanwhile: then they were not kept.
    let released: Vec<_> = all.into_iter().map(|held: Box<dyn Held>| held.release()).collect();
    stream::iter(released).buffer_unordered(TOGETHER).try_for_each(|()| ready(Ok(()))).await?;
    client.close().await?;
    let sample = Sample::default()
        .with(Metric::ClientCpu, share)
        .with(Metric::Memory, memory.map(|bytes| bytes / f64::from(task.size.tasks)))
        .with(Metric::ServerRate, requests.map(|requests| requests / seconds));
    Ok(match requests {
        Some(requests) => sample.remark(format!("{requests} requests in {seconds:.1} s")),
        None => sample,
    })
}
