use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::crowd::{clients, close};
use super::{About, Effort, Size, Workload, fresh_name};
use crate::data::Metric;
use crate::measure::{Sample, Stretch};
use crate::subject::{Ask, Client, Failure, Held, Need, Subject};

/// How long after the last has asked all stand in the line, and have asked what they had to.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) struct Idle;

#[async_trait]
impl Workload for Idle {
    fn about(&self) -> About {
        About::new("idle", "One client holds a lock and 64 wait for it, each a client of its own or all of them tasks of one client, for \
         as long as the waiters' lease. Then it is given back, and all of them have it in turn.").needs(&[Need::Wait, Need::Renewal]).once()
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        let size = |name: &str| Size { name: name.into(), tasks: 64, fair: true };
        if effort.small { vec![size("64 tasks")] } else { vec![size("64 clients"), size("64 tasks")] }
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.about().id);
        let holder = subject.connect(effort.idle).await?;
        let held = holder.prepare(&Ask::exclusive(&name))?.take().await?;
        let count = if size.name == "64 tasks" { 1 } else { size.count() };
        let clients = clients(subject, count, effort.idle).await?;
        let waiters = wait(&clients, size.count(), &name)?;
        tokio::time::sleep(SETTLE).await;
        let before = subject.served().await?;
        let stretch = Stretch::begin();
        tokio::time::sleep(effort.idle).await;
        let (seconds, share) = (stretch.seconds(), stretch.share());
        let rate = match (before, subject.served().await?) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before) as f64 / seconds),
            _ => None,
        };
        drain(held, waiters).await?;
        close(clients).await?;
        holder.close().await?;
        Ok(Sample::default().with(Metric::ServerRate, rate).with(Metric::ClientCpu, share))
    }
}

/// Lets so many tasks ask for `name`, by these clients in turn. Each gives it back as soon as it has it.
pub(super) fn wait(
    clients: &[Arc<dyn Client>],
    count: usize,
    name: &str,
) -> Result<JoinSet<Result<(), Failure>>, Failure> {
    let mut waiters = JoinSet::new();
    for client in clients.iter().cycle().take(count) {
        let lock = client.prepare(&Ask::exclusive(name))?;
        waiters.spawn(async move { lock.take().await?.release().await });
    }
    Ok(waiters)
}

/// Gives back what all wait for, and waits until all have had it.
pub(super) async fn drain(
    held: Box<dyn Held>,
    mut waiters: JoinSet<Result<(), Failure>>,
) -> Result<(), Failure> {
    if let Some(early) = waiters.try_join_next() {
        early??;
        return Err("a waiter was granted what another held".into());
    }
    held.release().await?;
    while let Some(waiter) = waiters.join_next().await {
        waiter??;
    }
    Ok(())
}
