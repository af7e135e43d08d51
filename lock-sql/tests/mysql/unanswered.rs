//! An acquire that was given up, and that the server carries out later.

use std::time::{Duration, Instant};

use onelock_core::{Backend, Mode, Release};
use sqlx::Executor as _;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, request};

/// The server has it, and waits for somebody's row lock; the release overtakes it on another connection.
#[tokio::test]
async fn an_acquire_that_comes_after_its_release_is_given_back() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&format!("{}?request_timeout=500ms", server.url())).await;
    let mut other = server.admin().await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    let counter = "SELECT * FROM locks.onelock_counter WHERE bucket = CRC32('late') % 1024 FOR UPDATE";
    other.execute(counter).await.unwrap();
    let entry = request("late", Mode::Exclusive);
    let error = store.acquire(&entry).await.unwrap_err();
    assert!(error.is_unclear(), "{error}");
    let first = store.release(&entry.ticket()).await;
    // Now the server carries the acquire out.
    other.execute("ROLLBACK").await.unwrap();
    let line = "SELECT COUNT(*) FROM locks.onelock_line";
    let end = Instant::now() + LONG;
    while server.count(line).await.unwrap() == 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // As the core: until the answer is definite.
    let mut released = first;
    while released.is_err() {
        assert!(Instant::now() < end, "{released:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        released = store.release(&entry.ticket()).await;
    }
    assert_eq!(server.count(line).await.unwrap(), 0, "{released:?}");
    // What was answered is definite.
    let next = request("late", Mode::Exclusive);
    held(&store, &next).await;
    assert_eq!(store.release(&next.ticket()).await.unwrap(), Release::Released);
    assert_eq!(store.release(&next.ticket()).await.unwrap(), Release::NotHeld);
}
