//! Fenced transactions.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{ErrorKind, FencingToken, Guard, LockName, Locks, Result};
use onelock_sql::fence::mysql::{SCHEMA, admit, check};
use sqlx::{Connection as _, Executor as _, MySqlConnection};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::connect;

async fn data(server: &MariaDb) -> MySqlConnection {
    let mut data = server.admin().await.unwrap();
    data.execute("USE locks").await.unwrap();
    data.execute(SCHEMA).await.unwrap();
    data.execute("CREATE TABLE data AS SELECT 'nothing' AS value").await.unwrap();
    data
}

/// Writes under a token, or without a fence.
async fn write(
    data: &mut MySqlConnection,
    value: &str,
    fence: Option<(&LockName, FencingToken)>,
) -> Result<()> {
    let mut transaction = data.begin().await.unwrap();
    if let Some((name, token)) = fence {
        admit(&mut transaction, name, token, true).await?;
    }
    sqlx::query("UPDATE data SET value = ?").bind(value).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

async fn value(data: &mut MySqlConnection) -> String {
    sqlx::query_scalar("SELECT value FROM data").fetch_one(data).await.unwrap()
}

fn of(guard: &Guard) -> Option<(&LockName, FencingToken)> {
    Some((guard.name(), guard.token().unwrap()))
}

#[tokio::test]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
    let server = MariaDb::start(&[]).await.unwrap();
    let locks = Locks::builder(Arc::new(connect(&server.url()).await)).build().unwrap();
    let mut data = data(&server).await;
    let lock = locks.mutex("n").unwrap().ttl(Duration::from_millis(500)).unwrap();
    let late = lock.clone().auto_renew(false).acquire().await.unwrap();
    let (name, token) = (late.name().clone(), late.token().unwrap());
    // Until the lease of the first has ended.
    let next = lock.acquire().await.unwrap();
    write(&mut data, "later", of(&next)).await.unwrap();
    let error = write(&mut data, "late", Some((&name, token))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    let stale = error.stale().unwrap();
    assert_eq!((stale.token, stale.newest), (token, next.token().unwrap()));
    assert_eq!(value(&mut data).await, "later");
    write(&mut data, "late", None).await.unwrap();
    assert_eq!(value(&mut data).await, "late");
    // The holder that knows of it is told by its guard.
    assert_eq!(check(&mut data, &late).await.unwrap_err().kind(), ErrorKind::Lost);
    check(&mut data, &next).await.unwrap();
}

/// What was checked is committed before a later holder's check is answered, also where the name is new.
#[tokio::test]
async fn a_check_holds_until_the_transaction_ends() {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut one = data(&server).await;
    let mut two = server.admin().await.unwrap();
    two.execute("USE locks").await.unwrap();
    two.execute("SET innodb_lock_wait_timeout = 1").await.unwrap();
    let [old, new] = [7, 8].map(|number| FencingToken::new(number).unwrap());
    for level in ["REPEATABLE READ", "READ COMMITTED"] {
        for connection in [&mut one, &mut two] {
            let level = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            connection.execute(sqlx::AssertSqlSafe(level)).await.unwrap();
        }
        two.execute("DELETE FROM onelock_fence").await.unwrap();
        for (first, second) in [(true, true), (true, false), (false, true)] {
            let name = LockName::new(format!("{first}-{second}")).unwrap();
            let mut transaction = one.begin().await.unwrap();
            admit(&mut transaction, &name, old, first).await.unwrap();
            let error = admit(&mut two, &name, new, second).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error}");
            transaction.commit().await.unwrap();
            admit(&mut two, &name, new, second).await.unwrap();
            // Those that share let each other pass, and nobody else.
            let mut transaction = one.begin().await.unwrap();
            admit(&mut transaction, &name, new, false).await.unwrap();
            admit(&mut two, &name, new, false).await.unwrap();
            admit(&mut two, &name, new, true).await.unwrap_err();
            transaction.rollback().await.unwrap();
        }
        // The watermark is not that of the transaction's snapshot.
        let name = LockName::new("seen").unwrap();
        admit(&mut two, &name, old, true).await.unwrap();
        let mut transaction = one.begin().await.unwrap();
        transaction.execute("SELECT * FROM onelock_fence").await.unwrap();
        admit(&mut two, &name, new, true).await.unwrap();
        let error = admit(&mut transaction, &name, old, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn those_that_share_are_compared_and_permits_are_refused() {
    let server = MariaDb::start(&[]).await.unwrap();
    let locks = Locks::builder(Arc::new(connect(&server.url()).await)).build().unwrap();
    let mut data = data(&server).await;
    let both = locks.rwlock("n").unwrap();
    let (first, second) = (both.read().acquire().await.unwrap(), both.read().acquire().await.unwrap());
    check(&mut data, &second).await.unwrap();
    check(&mut data, &first).await.unwrap();
    let (name, token) = (first.name().clone(), first.token().unwrap());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = both.write().acquire().await.unwrap();
    check(&mut data, &writer).await.unwrap();
    let error = admit(&mut data, &name, token, false).await.unwrap_err();
    assert_eq!(error.stale().map(|stale| stale.newest), Some(writer.token().unwrap()), "{error}");
    let permit = locks.semaphore("p", 2).unwrap().acquire().await.unwrap();
    assert_eq!(check(&mut data, &permit).await.unwrap_err().kind(), ErrorKind::Unsupported);
    data.execute("DROP TABLE onelock_fence").await.unwrap();
    let error = check(&mut data, &writer).await.unwrap_err();
    assert!(error.to_string().contains("onelock_fence"), "{error}");
}
