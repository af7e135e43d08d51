//! A follower that is cut from its leader while the holder's client is on it.

use std::time::{Duration, Instant};

use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::faults::{Fault, Link};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::{Locks, LossReason, Settings};
use zookeeper_client as zk;

use crate::support::harness::open;
use crate::support::servers::ensemble_on;
use onelock_conformance::servers::zookeeper::ZkServer;

async fn client(servers: &[ZkServer], lease: Duration) -> Verdict<Locks> {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("zk://{}/own?tick=200ms&request_timeout=2s", hosts.join(","));
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (lease, lease);
    Ok(Locks::builder(open(&url).await?).settings(settings).build()?)
}

/// The follower goes on answering reads, and shows the holder's node when the leader has long given the lock to the
/// next one. The holder knows that it lost before that.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_behind_a_cut_follower_knows_before_the_next_one_holds() -> Verdict {
    let link = Link::new();
    let (servers, _proxies) = ensemble_on(&link).await?;
    let (majority, follower) = servers.split_at(2);
    let reader = zk::Client::connector().with_session_timeout(Duration::from_secs(60));
    let reader = reader.connect(&follower[0].address().to_string()).await?;
    let next = client(majority, Duration::from_secs(30)).await?;
    for (round, millis) in [1_000, 2_000, 3_000, 4_000].into_iter().enumerate() {
        let lease = Duration::from_millis(millis);
        let holder = client(follower, lease).await?;
        let name = format!("cut-{round}");
        let guard = holder.mutex(&name)?.acquire().await?;
        let before = guard.token()?;
        let waiter = tokio::spawn({
            let lock = next.mutex(&name)?;
            async move { lock.acquire().await }
        });
        // Both nodes have reached the follower.
        let shown = async || reader.list_children(&format!("/own/{name}")).await;
        let end = Instant::now() + PATIENCE;
        while shown().await?.len() < 2 {
            ensure!(Instant::now() < end, "round {round}: the waiter does not join");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It has been renewed at least once, so that its deadline is one of a renewal.
        guard.renewed(guard.deadline()).await.context("lost before the cut")?;
        link.set(Fault::Stall);
        let granted = tokio::time::timeout(PATIENCE, waiter).await???;
        let now = next.clock().now();
        ensure!(!guard.is_held(), "round {round}: two believe that they hold");
        ensure!(guard.deadline() <= now, "round {round}: the holder's deadline is after the next grant");
        let reason = tokio::time::timeout(PATIENCE, guard.lost()).await?;
        ensure_eq!(reason, LossReason::Expired, "round {round}: why it lost");
        ensure!(granted.token()? > before, "round {round}: tokens");
        // What makes this hard: the follower does not know, and says so to whoever asks.
        ensure_eq!(shown().await?.len(), 2, "round {round}: what the follower shows");
        ensure_eq!(follower[0].mode().await.as_deref(), Some("follower"), "round {round}: its mode");
        link.heal();
        granted.release().await?;
        // It has caught up when it serves its own client again.
        tokio::time::timeout(PATIENCE, holder.mutex(&name)?.acquire()).await??.release().await?;
        // What the cut client owes is given back or gone by now.
        holder.close(PATIENCE).await?;
    }
    Ok(())
}

/// The follower sees at once that its leader is gone, and serves nobody: the same promise.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_behind_a_follower_without_a_leader_knows_too() -> Verdict {
    let link = Link::new();
    let (servers, _proxies) = ensemble_on(&link).await?;
    let (majority, follower) = servers.split_at(2);
    let holder = client(follower, Duration::from_secs(2)).await?;
    let next = client(majority, Duration::from_secs(30)).await?;
    let guard = holder.mutex("reset")?.acquire().await?;
    let waiter = tokio::spawn({
        let lock = next.mutex("reset")?;
        async move { lock.acquire().await }
    });
    guard.renewed(guard.deadline()).await.context("lost before the cut")?;
    link.set(Fault::Reset);
    let granted = tokio::time::timeout(PATIENCE, waiter).await???;
    let now = next.clock().now();
    ensure!(!guard.is_held() && guard.deadline() <= now, "two believe that they hold");
    link.heal();
    granted.release().await?;
    // The client goes on without being made anew.
    let lock = holder.mutex("reset")?.retry(onelock_core::Retry::default().errors(u32::MAX));
    tokio::time::timeout(PATIENCE * 2, lock.acquire()).await??.release().await?;
    Ok(())
}
