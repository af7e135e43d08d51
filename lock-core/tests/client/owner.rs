//! Calls of one owner: re-entry, and acquires that share an acquisition.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_and_the_outermost_release_counts() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(outer.token().unwrap(), inner.token().unwrap());
    outer.release().await.unwrap();
    assert!(inner.is_held());
    assert!(locks.mutex("a").unwrap().try_acquire().await.unwrap().is_none(), "another is not this owner");
    let (third, fourth) = (inner.reenter().unwrap(), inner.reenter().unwrap());
    third.release().await.unwrap();
    inner.release().await.unwrap();
    assert!(fourth.is_held(), "each steps out once");
    fourth.release().await.unwrap();
    nothing_left(&locks, &store).await;

    let rw = locks.rwlock("b").unwrap();
    let read = rw.read().owner(&owner).unwrap().acquire().await.unwrap();
    let write = rw.write().owner(&owner).unwrap();
    assert_eq!(write.acquire().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    assert_eq!(write.try_acquire().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    drop(read);
    let write = write.acquire().await.unwrap();
    let read = rw.read().owner(&owner).unwrap().acquire().await.unwrap();
    assert_eq!(read.mode(), write.mode(), "a writer may read");
}

#[tokio::test(start_paused = true)]
async fn a_second_acquire_takes_over_from_a_cancelled_first() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.map(|_| ()) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1, "the second joins the first");
    first.abort();
    blocker.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_acquire_goes_on_without_a_first_that_is_not_polled() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let first = begun(lock.acquire()).await;
    blocker.release().await.unwrap();
    let second = lock.acquire_timeout(Duration::from_secs(3_600)).await.unwrap();
    let second = second.unwrap_or_else(|| panic!("the second waits for the first to be polled"));
    let first = first.await.unwrap();
    assert_eq!(first.token().unwrap(), second.token().unwrap(), "entered again");
    drop((first, second));
    nothing_left(&locks, &store).await;
}

/// Whoever is polled goes on for all, and each hears what came of its own terms.
#[tokio::test(start_paused = true)]
async fn a_first_that_gave_up_hears_so_and_the_second_goes_on() {
    let (locks, store) = locks();
    let owner = locks.owner();
    let blocker = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let twice = lock.clone().unfair().retry(onelock_core::Retry::default().attempts(2));
    let first = begun(twice.acquire()).await;
    let second = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1, "the second is in the line");
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Busy);
    blocker.release().await.unwrap();
    drop(second.await.unwrap().unwrap());
    nothing_left(&locks, &store).await;
}

#[tokio::test(start_paused = true)]
async fn who_joins_an_acquire_of_its_owner_is_behind_others() {
    let (locks, _) = locks();
    let owner = locks.owner();
    let held = locks.mutex("a").unwrap().acquire().await.unwrap();
    let lock = locks.mutex("a").unwrap().owner(&owner).unwrap();
    let _first = begun(lock.acquire()).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::from_secs(1)).await.unwrap().is_none());
    drop(held);
}
