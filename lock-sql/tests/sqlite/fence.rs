//! Fenced transactions.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{ErrorKind, FencingToken, LockName, Locks, Result};
use onelock_sql::fence::sqlite::{SCHEMA, admit, check};
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

use crate::support::{file, folder, open};

async fn locks(folder: &TempDir) -> Locks {
    Locks::builder(Arc::new(open(&file(folder)).await)).build().unwrap()
}

fn data(folder: &TempDir) -> Connection {
    let data = Connection::open(folder.path().join("data.db")).unwrap();
    data.execute_batch("PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 0").unwrap();
    data.execute_batch(SCHEMA).unwrap();
    data.execute_batch("CREATE TABLE IF NOT EXISTS data AS SELECT '' AS value").unwrap();
    data
}

/// Writes under a token, or without a fence.
fn write(data: &mut Connection, value: &str, fence: Option<(&LockName, FencingToken)>) -> Result<()> {
    let transaction = data.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    if let Some((name, token)) = fence {
        admit(&transaction, name, token, true)?;
    }
    transaction.execute("UPDATE data SET value = ?1", [value]).unwrap();
    transaction.commit().unwrap();
    Ok(())
}

fn value(data: &Connection) -> String {
    data.query_row("SELECT value FROM data", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
    let folder = folder();
    let locks = locks(&folder).await;
    let mut data = data(&folder);
    let lock = locks.mutex("n").unwrap().ttl(Duration::from_millis(500)).unwrap();
    let late = lock.clone().auto_renew(false).acquire().await.unwrap();
    let (name, token) = (late.name().clone(), late.token().unwrap());
    // Until the lease of the first has ended.
    let next = lock.acquire().await.unwrap();
    write(&mut data, "later", Some((next.name(), next.token().unwrap()))).unwrap();
    let error = write(&mut data, "late", Some((&name, token))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    let stale = error.stale().unwrap();
    assert_eq!((stale.token, stale.newest), (token, next.token().unwrap()));
    assert_eq!(value(&data), "later");
    write(&mut data, "late", None).unwrap();
    assert_eq!(value(&data), "late");
    // The holder that knows of it is told by its guard.
    assert_eq!(check(&data, &late).unwrap_err().kind(), ErrorKind::Lost);
    check(&data, &next).unwrap();
}

/// A transaction that has only read so far cannot write once a later holder has.
#[test]
fn a_shared_check_holds_until_the_transaction_ends() {
    let folder = folder();
    let (mut one, two) = (data(&folder), data(&folder));
    let name = LockName::new("n").unwrap();
    let [old, new] = [7, 8].map(|number| FencingToken::new(number).unwrap());
    let transaction = one.transaction().unwrap();
    admit(&transaction, &name, old, false).unwrap();
    admit(&two, &name, new, true).unwrap();
    transaction.execute("UPDATE data SET value = 'late'", []).unwrap_err();
    transaction.rollback().unwrap();
    assert!(admit(&one, &name, old, false).unwrap_err().stale().is_some());
}

#[tokio::test]
async fn those_that_share_are_compared_and_permits_are_refused() {
    let folder = folder();
    let locks = locks(&folder).await;
    let data = data(&folder);
    let both = locks.rwlock("n").unwrap();
    let (first, second) = (both.read().acquire().await.unwrap(), both.read().acquire().await.unwrap());
    check(&data, &second).unwrap();
    check(&data, &first).unwrap();
    let (name, token) = (first.name().clone(), first.token().unwrap());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = both.write().acquire().await.unwrap();
    check(&data, &writer).unwrap();
    let error = admit(&data, &name, token, false).unwrap_err();
    assert_eq!(error.stale().map(|stale| stale.newest), Some(writer.token().unwrap()), "{error}");
    let permit = locks.semaphore("p", 2).unwrap().acquire().await.unwrap();
    assert_eq!(check(&data, &permit).unwrap_err().kind(), ErrorKind::Unsupported);
    data.execute_batch("DROP TABLE onelock_fence").unwrap();
    let error = check(&data, &writer).unwrap_err();
    assert!(error.to_string().contains("onelock_fence"), "{error}");
}
