//! Many who wait for one lock.

use std::time::Duration;

use futures_util::TryFutureExt as _;
use tokio::task::JoinSet;

use super::crowd::{clients, close};
use super::{Size, Task, Workload};
use crate::data::Metric;
use crate::measure::{Sample, Stretch};
use crate::subject::{Failure, LockSpec, Need};

/// How long after the last has asked all stand in the line, and have asked what they had to.
const SETTLE: Duration = Duration::from_millis(500);

const TASKS: &str = "64 tasks";

pub(super) const IDLE: Workload = Workload {
    needs: &[Need::Wait, Need::Renewal],
    once: true,
    sizes: |effort| {
        let both = [Size::of("64 clients", 64), Size::of(TASKS, 64)];
        both.into_iter().filter(|size| !effort.small || size.name == TASKS).collect()
    },
    ..Workload::new(
        "idle",
        "One client holds a lock and 64 wait for it, each a client of its own or all of them tasks of one client, for as long \
         as the waiters' lease: what that asks of the server and of the client's processor, and what a task that waits \
         takes of the client's memory. (In the memory store the line itself is in it.) Then it is given back, and all of \
         them have it in turn.",
        |task| Box::pin(idle(task)),
    )
};

async fn idle(task: &Task) -> Result<Sample, Failure> {
    let lease = task.effort.idle;
    let one_client = task.size.name == TASKS;
    let holder = task.subject.connect(lease).await?;
    let held = holder.prepare(&LockSpec::exclusive(&task.name))?.take().await?;
    let clients = clients(&task.subject, if one_client { 1 } else { task.size.count() }, lease).await?;
    for client in &clients {
        // The first request of a connection may bring others with it, and buffers.
        client
            .prepare(&LockSpec::exclusive(&format!("{}-first", task.name)))?
            .take()
            .await?
            .release()
            .await?;
    }
    let allocated = || task.effort.memory.filter(|_| one_client).map(|memory| memory());
    let before = allocated();
    let mut waiters = JoinSet::new();
    for client in clients.iter().cycle().take(task.size.count()) {
        let lock = client.prepare(&LockSpec::exclusive(&task.name))?;
        waiters.spawn(async move { lock.take().and_then(|held| held.release()).await });
    }
    tokio::time::sleep(SETTLE).await;
    let (asked, stretch) = (task.served().await?, Stretch::begin());
    tokio::time::sleep(lease).await;
    let (seconds, share) = (stretch.seconds(), stretch.share());
    let requests = task.served_since(asked).await?;
    let memory = allocated().zip(before).map(|(after, before)| after.saturating_sub(before) as f64);

    if let Some(early) = waiters.try_join_next() {
        early??;
        return Err("a waiter was granted what another held".into());
    }
    held.release().await?;
    while let Some(waiter) = waiters.join_next().await {
        waiter??;
    }
    close(clients).await?;
    holder.close().await?;
    Ok(Sample::default()
        .with(Metric::ServerRate, requests.map(|requests| requests / seconds))
        .with(Metric::ClientCpu, share)
        .with(Metric::Memory, memory.map(|bytes| bytes / f64::from(task.size.tasks))))
}
