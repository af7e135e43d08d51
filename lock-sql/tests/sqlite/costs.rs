//! What the verbs cost the file, counted in its write-ahead log.

use std::path::Path;
use std::sync::Arc;

use onelock_core::{Backend as _, Locks, Renewed, Wake};

use crate::support::{file, folder, hold, open, queue, raw, release, renewal, request};

/// How many write transactions the log holds: the frames that end one say how large the file is then.
fn commits(path: &Path) -> usize {
    const HEAD: usize = 32;
    const FRAME_HEAD: usize = 24;
    let log = std::fs::read(format!("{}-wal", path.display())).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    // What an earlier round of the log left behind has other salts.
    let frames = log[HEAD..].chunks_exact(FRAME_HEAD + page).take_while(|frame| frame[8..16] == log[16..24]);
    frames.filter(|frame| frame[4..8] != [0; 4]).count()
}

#[tokio::test]
async fn an_uncontended_cycle_is_one_write_transaction_each_way() {
    let folder = folder();
    let path = file(&folder);
    let locks = Locks::builder(Arc::new(open(&path).await)).build().unwrap();
    let lock = locks.mutex("n").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    for _ in 0..20 {
        let before = commits(&path);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(commits(&path), before + 1);
        let again = guard.reenter().unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        again.release().await.unwrap();
        assert_eq!(commits(&path), before + 1, "a re-entry and a busy try write nothing");
        guard.release().await.unwrap();
        assert_eq!(commits(&path), before + 2);
    }
}

#[tokio::test]
async fn a_hand_over_between_backends_is_a_join_and_a_release() {
    let folder = folder();
    let path = file(&folder);
    let (here, there) = (open(&path).await, open(&path).await);
    hold(&here, &request("n", 1)).await;
    for holder in 2..12 {
        let before = commits(&path);
        let (last, next) = (request("n", holder - 1).ticket(), request("n", holder));
        let (from, to) = if holder % 2 == 0 { (&here, &there) } else { (&there, &here) };
        let token = queue(to, &next).await;
        let next = next.ticket();
        let (woken, ()) = tokio::join!(to.wait(&next), release(from, &last));
        assert_eq!(woken.unwrap(), Wake::Held(token));
        assert_eq!(commits(&path), before + 2);
    }
}

#[tokio::test]
async fn renewals_of_one_call_share_a_transaction() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    let requests: Vec<_> = (1..=100).map(|holder| request(&format!("n{holder}"), holder)).collect();
    futures_util::future::join_all(requests.iter().map(|request| hold(&store, request))).await;
    let before = commits(&path);
    let due: Vec<_> = requests.iter().map(renewal).collect();
    assert!(store.renew(&due).await.iter().all(|renewed| matches!(renewed, Ok(Renewed::Held(_)))));
    assert_eq!(commits(&path), before + 1);
}

/// Who waits is in no writer's way, and no writer in theirs.
#[tokio::test]
async fn waiting_needs_no_write_transaction() {
    let folder = folder();
    let path = file(&folder);
    let store = open(&path).await;
    hold(&store, &request("n", 1)).await;
    let token = queue(&store, &request("n", 2)).await;
    release(&store, &request("n", 1).ticket()).await;
    let writer = raw(&path);
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(store.wait(&request("n", 2).ticket()).await.unwrap(), Wake::Held(token));
    writer.execute_batch("ROLLBACK").unwrap();
}
