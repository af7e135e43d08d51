//! A leader that stalls for longer than a session lives, and is not replaced meanwhile.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::ensure;
use onelock_conformance::servers::zookeeper::ZkServer;
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_core::{Clock, Lock, Locks, Retry, Settings, Timestamp};

use crate::support::harness::open;
use crate::support::servers::ensemble;

/// Longer than the short client's session: 1.6 s for a lease of one.
const STOP: Duration = Duration::from_secs(3);
const ROUNDS: usize = 8;
/// Names that both clients ask for, one after the other, in the last moments of the stop.
const NAMES: usize = 40;
const STEP: Duration = Duration::from_millis(10);

async fn client(server: &ZkServer, lease: Duration) -> Verdict<Locks> {
    let url = format!("zk://{}/own?tick=200ms&request_timeout=10s", server.address());
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(open(&url).await?).settings(settings).build()?)
}

/// Work under a lock as the worker saw it: from when it began until its last sign of life.
#[derive(Clone, Copy, Debug)]
struct Section {
    begun: Timestamp,
    last: Timestamp,
}

/// Works for `long`, or until the lock is lost.
async fn work(lock: Lock, clock: Arc<dyn Clock>, long: Duration) -> Verdict<Section> {
    let guard = tokio::time::timeout(PATIENCE, lock.acquire()).await??;
    let begun = clock.now();
    let mut section = Section { begun, last: begun };
    // Ended by the loss of the lock: then it worked until then.
    let _ended = guard
        .run(async {
            while clock.now() < begun + long {
                section.last = clock.now();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    drop(guard.release().await);
    Ok(section)
}

/// A write that waited for the leader is committed when that goes on, and the session it was made in may end just then: it
/// is no witness that the leader has heard of its session. Nobody works beside another.
#[tokio::test(flavor = "multi_thread")]
async fn who_asked_while_the_leader_stalled_works_alone() -> Verdict {
    let servers = ensemble().await?;
    let mut leader = None;
    for (i, server) in servers.iter().enumerate() {
        if server.mode().await.as_deref() == Some("leader") {
            leader = Some(i);
        }
    }
    let leader = leader.context("a leader")?;
    let mut overlaps = Vec::new();
    for round in 0..ROUNDS {
        let short = client(&servers[(leader + 1) % 3], Duration::from_secs(1)).await?;
        let long = client(&servers[(leader + 2) % 3], Duration::from_secs(10)).await?;
        let clock = Arc::clone(short.clock());
        let patient = |locks: &Locks, text: &str| -> Verdict<Lock> {
            Ok(locks.mutex(text)?.retry(Retry::default().errors(u32::MAX)))
        };
        for locks in [&short, &long] {
            patient(locks, "warm")?.acquire().await?.release().await?;
        }
        // Its session has been kept for a while: what is known of it is not how it began.
        tokio::time::sleep(Duration::from_secs(1)).await;
        servers[leader].process.pause(true)?;
        let stopped = clock.now();
        let mut workers = Vec::new();
        tokio::time::sleep(STOP.saturating_sub(STEP * u32::try_from(NAMES)?)).await;
        for i in 0..NAMES {
            let text = format!("r{round}-{i}");
            let first = patient(&short, &text)?;
            let first = tokio::spawn(work(first, Arc::clone(&clock), Duration::from_millis(1_500)));
            tokio::time::sleep(STEP / 2).await;
            let second = patient(&long, &text)?;
            let second = tokio::spawn(work(second, Arc::clone(&clock), Duration::from_millis(50)));
            workers.push((first, second));
            tokio::time::sleep(STEP / 2).await;
        }
        servers[leader].process.pause(false)?;
        ensure!(clock.now().saturating_since(stopped) >= STOP, "round {round}: too short a stop");
        for (i, (first, second)) in workers.into_iter().enumerate() {
            let (first, second) = (first.await??, second.await??);
            let (earlier, later) = if first.begun < second.begun { (first, second) } else { (second, first) };
            if later.begun < earlier.last {
                let both = earlier.last.saturating_since(later.begun);
                overlaps.push(format!("round {round}, name {i}: two work for {both:?}"));
            }
        }
        ensure!(
            servers[leader].mode().await.as_deref() == Some("leader"),
            "round {round}: another leads, so nothing was tested"
        );
        short.close(PATIENCE).await?;
        long.close(PATIENCE).await?;
    }
    if overlaps.is_empty() { Ok(()) } else { Err(Stop::failed(overlaps.join("; "))) }
}
