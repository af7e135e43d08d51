//! Fenced transactions.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{ErrorKind, FencingToken, Guard, LockName, Locks, Result};
use onelock_sql::fence::postgres::{SCHEMA, admit, check};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;

async fn data(server: &PostgresServer) -> PgConnection {
    let mut data = server.admin().await.unwrap();
    data.execute(SCHEMA).await.unwrap();
    data.execute("CREATE TABLE data AS SELECT ''::text AS value").await.unwrap();
    data
}

/// Writes under a token, or without a fence.
async fn write(data: &mut PgConnection, value: &str, fence: Option<(&LockName, FencingToken)>) -> Result<()> {
    let mut transaction = data.begin().await.unwrap();
    if let Some((name, token)) = fence {
        admit(&mut transaction, name, token, true).await?;
    }
    sqlx::query("UPDATE data SET value = $1").bind(value).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

async fn value(data: &mut PgConnection) -> String {
    sqlx::query_scalar("SELECT value FROM data").fetch_one(data).await.unwrap()
}

fn of(guard: &Guard) -> Option<(&LockName, FencingToken)> {
    Some((guard.name(), guard.token().unwrap()))
}

#[tokio::test]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let locks = Locks::builder(Arc::new(open(&server.url()).await)).build().unwrap();
    let (mut bare, early) =
        (server.admin().await.unwrap(), locks.mutex("early").unwrap().acquire().await.unwrap());
    let error = check(&mut bare, &early).await.unwrap_err().to_string();
    assert!(error.contains("no table `onelock_fence`") && error.contains("SCHEMA"), "{error}");
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
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut one = data(&server).await;
    let mut two = server.admin().await.unwrap();
    two.execute("SET lock_timeout = '100ms'").await.unwrap();
    let [old, new] = [7, 8].map(|number| FencingToken::new(number).unwrap());
    for (first, second) in [(true, true), (true, false), (false, true)] {
        let name = LockName::new(format!("{first}-{second}")).unwrap();
        let mut transaction = one.begin().await.unwrap();
        admit(&mut transaction, &name, old, first).await.unwrap();
        let error = admit(&mut two, &name, new, second).await.unwrap_err();
        assert!(error.to_string().contains("lock timeout"), "{name}: {error}");
        transaction.commit().await.unwrap();
        admit(&mut two, &name, new, second).await.unwrap();
        // Those that share let each other pass, and nobody else.
        let mut transaction = one.begin().await.unwrap();
        admit(&mut transaction, &name, new, false).await.unwrap();
        admit(&mut two, &name, new, false).await.unwrap();
        admit(&mut two, &name, new, true).await.unwrap_err();
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn those_that_share_are_compared_and_permits_are_refused() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let locks = Locks::builder(Arc::new(open(&server.url()).await)).build().unwrap();
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
    let error = check(&mut server.admin_beside().await.unwrap(), &writer).await.unwrap_err();
    assert!(error.to_string().contains("onelock_fence"), "{error}");
}
