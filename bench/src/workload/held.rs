use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::{About, Effort, Size, Workload, fresh_name};
use crate::data::Metric;
use crate::measure::{Sample, Stretch};
use crate::subject::{Ask, Client, Failure, Held, Need, Subject};

/// How many tasks take and give back.
const HANDS: u32 = 64;

pub(super) struct HeldLocks;

#[async_trait]
impl Workload for HeldLocks {
    fn about(&self) -> About {
        About::new("held", "One client holds many locks, 10 000 with a lease of 30 s in a full run, and keeps them: what that asks of the \
         server and of the client's processor for a third of the lease, in which each is renewed once, and what each \
         takes of the client's memory. (In the memory store the entry itself is in it.)").needs(&[Need::Renewal]).once()
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        Size::only(effort.held.0)
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let name = fresh_name(self.about().id);
        let lease = effort.held.1;
        let client = subject.connect(lease).await?;
        client.prepare(&Ask::exclusive(&name))?.take().await?.release().await?;
        let allocated = || effort.memory.map(|memory| memory());
        let before = allocated();
        let all = take(&client, size.tasks, &name).await?;
        let each = allocated().zip(before).map(|(after, before)| after.saturating_sub(before) as f64);

        let (asked, stretch) = (subject.served().await?, Stretch::begin());
        tokio::time::sleep(lease / 3).await;
        let (seconds, share) = (stretch.seconds(), stretch.share());
        let requests = subject.served().await?.zip(asked).map(|(after, before)| after.saturating_sub(before));

        give_back(all).await?;
        client.close().await?;
        let mut sample = Sample::default()
            .with(Metric::ClientCpu, share)
            .with(Metric::Memory, each.map(|bytes| bytes / f64::from(size.tasks)))
            .with(Metric::ServerRate, requests.map(|requests| requests as f64 / seconds));
        if let Some(requests) = requests {
            sample = sample.remark(format!("{requests} requests in {seconds:.1} s"));
        }
        Ok(sample)
    }
}

async fn take(client: &Arc<dyn Client>, count: u32, name: &str) -> Result<Vec<Box<dyn Held>>, Failure> {
    let next = Arc::new(AtomicU32::new(0));
    let mut hands = JoinSet::new();
    for _ in 0..HANDS {
        let (client, next, name) = (Arc::clone(client), Arc::clone(&next), name.to_owned());
        hands.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failure>(mine);
                }
                mine.push(client.prepare(&Ask::exclusive(&format!("{name}-{number}")))?.take().await?);
            }
        });
    }
    let mut all = Vec::with_capacity(count as usize);
    while let Some(hand) = hands.join_next().await {
        all.append(&mut hand??);
    }
    Ok(all)
}

/// Fails when one of them was lost meanwhile: then they were not kept.
async fn give_back(mut all: Vec<Box<dyn Held>>) -> Result<(), Failure> {
    let mut hands = JoinSet::new();
    let each = all.len().div_ceil(HANDS as usize);
    while !all.is_empty() {
        let some = all.split_off(all.len().saturating_sub(each));
        hands.spawn(async move {
            for held in some {
                held.release().await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(hand) = hands.join_next().await {
        hand??;
    }
    Ok(())
}
