//! Numbers never go back, although nothing waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::{ErrorKind, Locks};

use crate::server::{PATIENCE, Server, acquire, soon, until_waiting};

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

/// Sessions that took locks before a larger token epoch began take none after it, not even where they waited already.
pub(crate) async fn a_larger_token_epoch_ends_the_smaller<S: Server>(server: &S) {
    let old = server.open("").await;
    let guard = old.mutex("held").unwrap().acquire().await.unwrap();
    let waiter = acquire(&old, "held");
    until_waiting(server, 1).await;
    // On a connection that is kept.
    let mut free = draw(&old).await;
    for epoch in [1, 0x7fff] {
        let new = server.open(&format!("&token_epoch={epoch}")).await;
        // Both begin it: more than one connection.
        let (one, two) = tokio::join!(draw(&new), acquire(&new, "other"));
        let two = two.unwrap().unwrap().token().unwrap().get();
        assert!(one.min(two) > free && one.min(two) >> 48 == epoch, "{one} and {two} after {free}");
        free = one.max(two);
        // Seen and named as it was, by who has begun another epoch since.
        let holder = &new.inspect("held").await.unwrap().holders[0];
        assert_eq!(holder.token.get() & ((1 << 48) - 1), guard.token().unwrap().get());
        assert!(old.inspect("held").await.unwrap().holders[0].token == guard.token().unwrap());
        let refused = old.mutex("n").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains(&format!("token_epoch=0 is smaller than {epoch}")), "{refused}");
        assert!(draw(&new).await > free);
        free = draw(&new).await;
    }
    let last = server.open("&token_epoch=32767").await;
    guard.release().await.unwrap();
    let refused = soon(waiter).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    // The lock is free, and what the epoch has come to outlives a crash.
    let token = last.mutex("held").unwrap().try_acquire().await.unwrap().unwrap().token().unwrap().get();
    assert!(token > free);
    server.crash().await;
    assert!(draw(&server.open("&token_epoch=32767").await).await > token);
    let refused = server.open("&token_epoch=1").await.mutex("n").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
}
