//! Locks of different lengths on one client.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use onelock_conformance::ctx::PATIENCE;
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::Locks;
use zookeeper_client as zk;

use crate::support::counter::Counter;
use crate::support::harness::open;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};

/// The timeout of each session, as the server has it.
async fn timeouts(server: &ZkServer) -> Verdict<HashMap<i64, Duration>> {
    let mut found = HashMap::new();
    for line in server.word("cons").await?.lines() {
        let field = |name: &str| {
            line.split([',', '(', ')']).find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        if let (Some(id), Some(timeout)) = (field("sid"), field("to")) {
            let id = u64::from_str_radix(id.trim_start_matches("0x"), 16)?.cast_signed();
            found.insert(id, Duration::from_millis(timeout.parse()?));
        }
    }
    Ok(found)
}

/// A session for each class of lengths, none shorter than what was asked for, and the guard says what it has.
#[tokio::test(flavor = "multi_thread")]
async fn lengths_share_sessions_by_their_class() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let counter = Counter::start(server.address(), "/own")?;
    let locks = Locks::builder(open(&format!("zk://{}/own?tick=200ms", counter.address())).await?).build()?;
    let before = counter.counts().connections();
    let mut guards = Vec::new();
    for millis in [1_000, 1_010, 5_000, 5_050, 30_000] {
        let asked = Duration::from_millis(millis);
        let guard = locks.mutex(format!("ttl-{millis}"))?.ttl(asked)?.acquire().await?;
        ensure_eq!(guard.ttl(), asked, "what the guard says");
        guards.push(guard);
    }
    ensure_eq!(counter.counts().connections() - before, 3, "sessions for five locks of three classes");
    let timeouts = timeouts(&server).await?;
    let admin = zk::Client::connect(&server.address().to_string()).await?;
    for guard in &guards {
        let parent = format!("/own/{}", guard.name());
        let node = admin.list_children(&parent).await?.pop().context("its node")?;
        let stat = admin.check_stat(&format!("{parent}/{node}")).await?.context("its node")?;
        let timeout = timeouts.get(&stat.ephemeral_owner).context("its session")?;
        ensure!(*timeout >= guard.ttl(), "{} on a session of {timeout:?}", guard.name());
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// A client that is cut off: each of its locks is kept for its own length at least, and the short one does not wait for
/// the long one.
#[tokio::test(flavor = "multi_thread")]
async fn each_lock_ends_by_its_own_length() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let url = |address| format!("zk://{address}/own?tick=200ms&request_timeout=1s");
    let locks = Locks::builder(open(&url(proxy.address())).await?).build()?;
    let other = Locks::builder(open(&url(server.address())).await?).build()?;
    let (one, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    let short = locks.mutex("short")?.ttl(one)?.acquire().await?;
    let long = locks.mutex("long")?.ttl(hour)?.acquire().await?;
    ensure_eq!((short.ttl(), long.ttl()), (one, hour), "what the guards say");
    short.renewed(short.deadline()).await.context("lost before the cut")?;
    link.set(Fault::Stall);
    let began = Instant::now();
    while !other.inspect("short").await?.holders.is_empty() {
        ensure!(began.elapsed() < PATIENCE, "the short one does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The deadline is nine tenths of the length after the last renewal was sent.
    ensure!(other.clock().now() >= short.deadline() + one / 10, "the short one ended before its time");
    ensure!(!short.is_held() && long.is_held(), "which is held");
    ensure_eq!(other.inspect("long").await?.holders.len(), 1, "the long one in the store");
    link.heal();
    long.release().await?;
    Ok(())
}
