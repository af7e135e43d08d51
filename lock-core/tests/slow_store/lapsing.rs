//! Leases that run out, and grants that nobody picks up.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lock_lost_by_the_clock_is_the_next_ones_when_its_lease_and_delay_are_over() {
    for (delay, renewals_fail) in [(0, false), (5, false), (0, true), (5, true)] {
        let (locks, slow, other) = clients();
        let lock = locks.mutex("a").unwrap().ttl(SEC(10)).unwrap().lock_delay(SEC(delay)).unwrap();
        let start = tokio::time::Instant::now();
        let guard = lock.auto_renew(renewals_fail).acquire().await.unwrap();
        slow.renewals_fail.store(renewals_fail, Ordering::SeqCst);
        let lost = tokio::spawn(async move {
            let reason = guard.lost().await;
            (reason, start.elapsed(), guard)
        });
        let next = other.mutex("a").unwrap().acquire().await.unwrap();
        let taken = start.elapsed();
        assert!(taken >= SEC(10 + delay), "with a delay of {delay} s the next one holds after {taken:?}");
        assert!(taken < SEC(11 + delay), "{taken:?}");
        let (reason, told, guard) = lost.await.unwrap();
        assert_eq!(reason, LossReason::Expired);
        assert!(told < SEC(10), "the loss was told after {told:?}");
        drop((guard, next));
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_ends_no_lock_delay() {
    for (released, delay) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
        let (locks, _, other) = clients();
        let lock = locks.mutex("a").unwrap().ttl(SEC(9)).unwrap().max_hold(SEC(4)).unwrap();
        let start = tokio::time::Instant::now();
        let guard = lock.lock_delay(SEC(delay)).unwrap().acquire().await.unwrap();
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        assert!(
            other.mutex("a").unwrap().try_acquire().await.unwrap().is_none(),
            "given away under the work"
        );
        if released {
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        } else {
            drop(guard);
        }
        let next = other.mutex("a").unwrap().acquire().await.unwrap();
        let taken = start.elapsed();
        if delay == 0 {
            assert!(taken < SEC(5), "the work has ended, and the next one holds after {taken:?}");
        } else {
            assert!(taken >= SEC(9 + delay), "with a delay of {delay} s the next one holds after {taken:?}");
        }
        drop(next);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_caller_receives_goes_on_to_the_next() {
    let (locks, _, other) = clients();
    let held = other.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap();
    let mut left = pin!(lock.acquire());
    begin(left.as_mut());
    tokio::time::sleep(SEC(1)).await;
    held.release().await.unwrap();
    let start = tokio::time::Instant::now();
    let next = other.mutex("a").unwrap().acquire_timeout(SEC(100)).await.unwrap().expect("blocked for good");
    // A third of it until the renewer learns of the grant.
    let (most, taken) = (Settings::default().waiter_lease * 4 / 3, start.elapsed());
    assert!(taken <= most + SEC(1), "blocked for {taken:?}");
    next.release().await.unwrap();
    assert!(left.await.unwrap().is_held(), "its caller comes back and asks again");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_nobody_picks_up_goes_on_to_the_next() {
    let (locks, _, other) = clients();
    let given = locks.mutex("a").unwrap().acquire().await.unwrap().hand_over().await.unwrap();
    let mut resumed = pin!(locks.resume(given));
    begin(resumed.as_mut());
    tokio::time::sleep(SEC(1)).await;
    let next = other.mutex("a").unwrap().acquire_timeout(SEC(100)).await.unwrap();
    assert!(next.is_some(), "blocked for good");
    assert!(!resumed.await.unwrap().is_held());
}
