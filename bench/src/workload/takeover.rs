//! Clients that die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::{Task, Workload, fresh_name};
use crate::measure::{Latencies, Sample};
use crate::subject::{Failure, LockSpec, Need, Subject};

/// How long the heir has been waiting when the holder dies: by then it stands in the line.
const WAITED: Duration = Duration::from_millis(200);

pub(super) const TAKEOVER: Workload = Workload {
    operation: "crash",
    latency: Some(
        "from the death of the holder to the grant of the one that waits, most of it the rest of the dead one's lease",
    ),
    needs: &[Need::Wait, Need::Crash],
    ..Workload::new(
        "takeover",
        "A client dies while it holds a lock, and another waits for it. It dies with its runtime: its tasks end where they \
         stand, its connections break, and it says nothing.",
        |task| Box::pin(takeover(task)),
    )
};

async fn takeover(task: &Task) -> Result<Sample, Failure> {
    let (crashes, lease) = task.effort.crashes;
    let latencies = try_join_all((0..crashes).map(|_| crash(&task.subject, lease))).await?;
    let lease = humantime::format_duration(lease);
    Ok(Sample::of(Latencies::of(latencies)?).remark(format!("the lease asked for was {lease}")))
}

async fn crash(subject: &Arc<dyn Subject>, lease: Duration) -> Result<Duration, Failure> {
    let name = fresh_name("takeover");
    let heir = subject.connect(lease).await?;
    let lock = heir.prepare(&LockSpec::exclusive(&name))?;
    let (holds, is_held) = oneshot::channel();
    let theirs = Arc::clone(subject);
    let dying = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (client, held) = runtime.block_on(async {
            let client = theirs.connect(lease).await?;
            let held = client.prepare(&LockSpec::exclusive(&name))?.take().await?;
            // Its heir may have failed.
            let _ = holds.send(());
            tokio::time::sleep(WAITED).await;
            Ok::<_, Failure>((client, held))
        })?;
        let died = Instant::now();
        // All tasks end where they stand, and sockets as the kernel ends them when a process is killed; nothing can be sent
        // after that.
        drop(runtime);
        held.abandon();
        drop(client);
        Ok::<_, Failure>(died)
    });
    let inherits = async {
        // Where the holder has failed, its error is what counts.
        let _ = is_held.await;
        let held = lock.take().await?;
        let granted = Instant::now();
        held.release().await?;
        Ok::<_, Failure>(granted)
    };
    let (died, granted) = tokio::join!(dying, inherits);
    let (died, granted) = (died??, granted?);
    heir.close().await?;
    // It is dead as soon as its runtime no longer runs.
    granted.checked_duration_since(died).ok_or_else(|| Failure::from("it was granted before its holder died"))
}
