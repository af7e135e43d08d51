//! Masters with replicas, and clients of them.
#![allow(dead_code, unreachable_pub, reason = "every test file takes what it needs")]

use std::sync::Arc;
use std::time::Duration;

use crate::harness::servers::{Group, Plan};
use onelock_conformance::servers::resp::Resp;
use onelock_core::StoreUrl;
use onelock_core::store::Checked;
use onelock_redis::{RedisBackend, RedisConfig};

/// How long a server may be silent before it is replaced.
pub const SILENCE: Duration = Duration::from_millis(1500);
pub const LIMIT: Duration = Duration::from_secs(90);

pub async fn group(plan: Plan) -> Group {
    Group::start(plan).await.unwrap()
}

pub async fn backend(url: &str) -> Arc<Checked<RedisBackend>> {
    let config = RedisConfig::try_from(url.parse::<StoreUrl>().unwrap()).unwrap();
    Arc::new(RedisBackend::connect(config).await.unwrap())
}

/// The bucket of a name that needs no escape.
pub fn bucket(lock: &str) -> u32 {
    lock.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)) % 128
}

/// Which of the masters serves a name.
pub async fn owner(group: &Group, lock: &str) -> usize {
    let key = format!("onelock:{{{}}}:n", bucket(lock));
    for (i, address) in group.masters().iter().enumerate() {
        if group.say(*address, &["GET", &key]).await.is_ok() {
            return i;
        }
    }
    panic!("nobody serves {lock:?}");
}

/// The epoch of the failover that a token carries.
pub fn failover(token: i64) -> i64 {
    (token - (1 << 47)) >> 36
}

/// Waits until the sentinels know each other and the replicas, so that they can replace the master.
pub async fn is_watched(group: &Group) {
    let all = format!(",slaves={},sentinels={}", group.servers.len() - 1, group.sentinels.len());
    soon_until(async || {
        for sentinel in &group.sentinels {
            let mut sentinel = Resp::connect(sentinel.address()).await.ok()?;
            let info = sentinel.call(&["INFO", "sentinel"]).await.ok()?;
            if !info.concat().contains(&all) {
                return None;
            }
        }
        Some(())
    })
    .await;
}

pub fn config(url: &str) -> RedisConfig {
    RedisConfig::try_from(url.parse::<StoreUrl>().unwrap()).unwrap()
}

/// Polls until there is something.
pub async fn soon_until<T>(probe: impl AsyncFn() -> Option<T>) -> T {
    let end = std::time::Instant::now() + LIMIT;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(std::time::Instant::now() < end, "not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
