//! What a close waits for, and what it ends.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lock_that_came_to_a_closed_client_keeps_nobody_waiting() {
    let (locks, slow, other) = clients();
    slow.acquire.store(1_000, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap().at_least(SEC(600)).unwrap().lock_delay(SEC(600)).unwrap();
    let asked = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(SEC(1) / 2).await;
    locks.close(SEC(10)).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(other.mutex("a").unwrap().acquire_timeout(SEC(1)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_closed_after_releases_that_a_close_did_not_wait_for() {
    let (locks, slow, other) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    slow.release.store(5_000, Ordering::SeqCst);
    drop(guard);
    assert_eq!(locks.close(SEC(1)).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(other.mutex("a").unwrap().acquire_timeout(SEC(10)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_a_release_under_way_and_no_longer_than_it_may() {
    let (locks, slow, other) = clients();
    let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
    slow.release.store(300, Ordering::SeqCst);
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    assert_eq!(locks.pending(), 1);
    locks.close(SEC(5)).await.unwrap();
    assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "closed before the release");
    release.await.unwrap().unwrap();

    let (locks, slow, _) = clients();
    slow.close.store(60_000, Ordering::SeqCst);
    let start = tokio::time::Instant::now();
    assert_eq!(locks.close(SEC(5)).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(start.elapsed() < SEC(6), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_drain_without_time_waits_for_the_releases_under_way() {
    let (locks, slow, other) = clients();
    slow.release.store(900, Ordering::SeqCst);
    drop(locks.mutex("a").unwrap().acquire().await.unwrap());
    locks.drain(Duration::ZERO).await.unwrap();
    assert!(!other.inspect("a").await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_half_way_is_finished_and_given_back() {
    let (locks, slow, other) = clients();
    slow.answer.store(1_000, Ordering::SeqCst);
    for closed in [false, true] {
        begin(pin!(locks.mutex("a").unwrap().acquire()));
        assert_eq!(locks.pending(), 1);
        if closed {
            locks.close(SEC(10)).await.unwrap();
        } else {
            tokio::time::sleep(SEC(2)).await;
        }
        assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "it is left in the store");
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_an_acquire_under_way() {
    let (locks, slow, other) = clients();
    slow.answer.store(1_000, Ordering::SeqCst);
    let lock = locks.mutex("a").unwrap();
    let asked = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(SEC(1) / 2).await;
    locks.close(SEC(10)).await.unwrap();
    assert!(other.mutex("a").unwrap().try_acquire().await.unwrap().is_some(), "it is left in the store");
    assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_dropped_while_it_closes_closes_the_store() {
    let (locks, slow, _) = clients();
    slow.release.store(5_000, Ordering::SeqCst);
    drop(locks.mutex("a").unwrap().acquire().await.unwrap());
    tokio::time::timeout(SEC(1) / 2, locks.drain(SEC(10))).await.expect_err("it waits for the release");
    tokio::time::sleep(SEC(60)).await;
    let closed = slow.inspect(&LockName::new("a").unwrap()).await;
    assert_eq!(closed.expect_err("it is still open").kind(), ErrorKind::Closed);
}
