//! What is this store's own, on real ZooKeeper servers.

mod support;

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::ctx::{exclusive, held, name, renew, renewal, ticket, waiting};
use lock_conformance::verdict::Verdict;
use lock_core::Backend;

use support::counter::Counter;
use support::harness::open;
use support::server::{Setup, ZkServer};

type Client = Arc<dyn Backend>;

/// A server, and a counter before it.
async fn counted() -> Verdict<(ZkServer, Counter, String)> {
    let server = ZkServer::start(Setup::default()).await?;
    let counter = Counter::start(server.address(), "/own")?;
    let url = format!("zk://{}/own?tick=200ms", counter.address());
    Ok((server, counter, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cycle_costs() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let client: Client = open(&url).await?;
    let name = name("free")?;
    let cycle = async || {
        let request = exclusive(&name)?;
        let grant = held(&client, &request).await?;
        client.release(&ticket(&request, grant.token)).await?;
        Verdict::Ok(())
    };
    cycle().await?;
    let before = counter.counts().by_code();
    for _ in 0..20 {
        cycle().await?;
    }
    eprintln!("{before:?} {:?}", counter.counts().by_code());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crowd_costs() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let mut settings = lock_core::Settings::default();
    settings.ttl = Duration::from_secs(120);
    settings.waiter_lease = Duration::from_secs(120);
    let locks = lock_core::Locks::builder(open(&url).await?).settings(settings).build()?;
    let before = counter.counts().by_code();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let lock = locks.mutex("crowd")?;
        tasks.spawn(async move {
            for _ in 0..2 {
                lock.acquire().await?.release().await?;
            }
            Ok::<_, lock_core::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    eprintln!("{before:?} {:?}", counter.counts().by_code());
    Ok(())
}
