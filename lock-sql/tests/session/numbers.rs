//! Numbers never go back, although nothing waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::Locks;

use crate::server::{PATIENCE, Server};

/// The next number.
pub(crate) async fn draw(locks: &Locks) -> i64 {
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap().get();
    guard.release().await.unwrap();
    token
}

/// Clients draw numbers, each above `last`, and the server is killed under them when they have come `further`. Gives the
/// highest. `meanwhile` runs again and again until then.
pub(crate) async fn drawn_until_a_crash(
    server: &impl Server,
    last: i64,
    further: i64,
    meanwhile: impl AsyncFn(),
) -> i64 {
    let highest = Arc::new(AtomicI64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let locks = server.open("").await;
        let (highest, name) = (Arc::clone(&highest), format!("name-{}", task % 2));
        tasks.spawn(async move {
            let lock = locks.mutex(&name).unwrap();
            // Until the server is gone.
            while let Ok(Some(guard)) = lock.acquire_timeout(Duration::from_secs(20)).await {
                let Ok(token) = guard.token() else { break };
                assert!(token.get() > last, "token {token}, and {last} before the crash");
                highest.fetch_max(token.get(), Ordering::SeqCst);
                if guard.release().await.is_err() {
                    break;
                }
            }
        });
    }
    let end = Instant::now() + PATIENCE;
    while highest.load(Ordering::SeqCst) < last + further {
        assert!(Instant::now() < end, "no numbers are drawn after {last}");
        meanwhile().await;
    }
    server.crash().await;
    tasks.shutdown().await;
    highest.load(Ordering::SeqCst)
}
