use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::{About, Effort, Size, Workload, fresh_name};
use crate::lab::Lab;
use crate::measure::{Latencies, Sample};
use crate::subject::{Ask, Failure, Need, Subject};

/// How long the heir has been waiting when the holder dies: by then it stands in the line.
const WAITED: Duration = Duration::from_millis(200);

pub(super) struct Takeover;

#[async_trait]
impl Workload for Takeover {
    fn about(&self) -> About {
        About::new("takeover", "A client dies while it holds a lock, and another waits for it. It dies with its runtime: its tasks end where \
         they stand, its connections break, and it says nothing.").operation("crash").latency("from the death of the holder to the grant of the one that waits, most of it the rest of the dead one's lease").needs(&[Need::Wait, Need::Crash])
    }

    async fn run(&self, subject: &Arc<dyn Subject>, _: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let (crashes, lease) = effort.crashes;
        let mut latencies = Latencies::new()?;
        for latency in try_join_all((0..crashes).map(|_| crash(self.about().id, subject, lease))).await? {
            latencies.add(latency);
        }
        let lease = humantime::format_duration(lease);
        Ok(Sample::of(latencies).remark(format!("the lease asked for was {lease}")))
    }
}

async fn crash(workload: &str, subject: &Arc<dyn Subject>, lease: Duration) -> Result<Duration, Failure> {
    let name = fresh_name(workload);
    let heir = subject.connect(lease).await?;
    let lock = heir.prepare(&Ask::exclusive(&name))?;
    let lab = Lab::start()?;
    let (theirs, its_name) = (Arc::clone(subject), name.clone());
    let holding = async move {
        let client = theirs.connect(lease).await?;
        let held = client.prepare(&Ask::exclusive(&its_name))?.take().await?;
        Ok::<_, Failure>((client, held))
    };
    let (client, held) = lab.run(holding).await??;
    let waiting = tokio::spawn(async move {
        let held = lock.take().await?;
        let granted = Instant::now();
        held.release().await?;
        Ok::<_, Failure>(granted)
    });
    lab.run(tokio::time::sleep(WAITED)).await?;
    let died = Instant::now();
    lab.end(move || {
        held.abandon();
        drop(client);
    })
    .await?;
    let granted = waiting.await??;
    heir.close().await?;
    // It is dead as soon as its runtime no longer runs.
    granted.checked_duration_since(died).ok_or_else(|| Failure::from("it was granted before its holder died"))
}
