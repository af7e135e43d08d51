//! Numbers of a name only grow, whatever becomes of the server.

use std::time::{Duration, Instant};

use onelock_core::store::Checked;
use onelock_core::{Backend as _, ErrorKind, FencingToken, Raise, Release, Standing, TokenEpoch};
use onelock_sql::PostgresBackend;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

async fn cycle(store: &Checked<PostgresBackend>) -> i64 {
    let one = request("n");
    let Standing::Held(grant) = store.acquire(&one).await.unwrap() else { panic!("busy") };
    assert_eq!(store.release(&one.ticket()).await.unwrap(), Release::Released);
    grant.token.get()
}

/// Logical replication copies the rows of logged tables, and neither sequences nor what is not logged.
#[tokio::test]
async fn tokens_grow_and_locks_stay_over_a_logical_switch_over() {
    let old = PostgresServer::start(&["wal_level=logical"]).await.unwrap();
    let new = PostgresServer::start(&[]).await.unwrap();
    let store = open(&old.url()).await;
    let mut last = 0;
    for _ in 0..40 {
        last = cycle(&store).await;
    }
    let held = request("held");
    assert!(matches!(store.acquire(&held).await.unwrap(), Standing::Held(_)));
    // The new server has the tables, and has served, too: what it keeps of that line says that it is free.
    let there = open(&new.url()).await;
    let two = [request("held"), request("held")];
    for one in &two {
        there.acquire(one).await.unwrap();
    }
    for one in &two {
        assert_eq!(there.release(&one.ticket()).await.unwrap(), Release::Released);
    }
    there.close().await.unwrap();
    let (mut from, mut to) = (old.admin().await.unwrap(), new.admin().await.unwrap());
    from.execute("CREATE PUBLICATION locks FOR ALL TABLES").await.unwrap();
    let tables = "SELECT tablename FROM pg_publication_tables WHERE schemaname = 'onelock'";
    for row in from.fetch_all(tables).await.unwrap() {
        let sql = format!("TRUNCATE onelock.{}", row.get::<&str, _>(0));
        to.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    let subscribe = format!(
        "CREATE SUBSCRIPTION locks CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres' PUBLICATION locks",
        old.port()
    );
    to.execute(sqlx::raw_sql(AssertSqlSafe(subscribe))).await.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while to
        .fetch_optional("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'")
        .await
        .unwrap()
        .is_some()
    {
        assert!(Instant::now() < end, "the tables are not copied");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    to.execute(sqlx::raw_sql("DROP SUBSCRIPTION locks")).await.unwrap();
    let there = open(&new.url()).await;
    let another = there.acquire(&request("held").queue(false)).await.unwrap();
    assert!(matches!(another, Standing::Busy(_)), "two hold: {another:?}");
    assert_eq!(there.release(&held.ticket()).await.unwrap(), Release::Released);
    let token = cycle(&there).await;
    assert!(token > last, "token {token} after {last}");
}

/// Raised within a block, and far above it; a name that is not raised gets no number twice.
#[tokio::test]
async fn numbers_go_on_above_what_was_raised() {
    let server = PostgresServer::start(&["synchronous_commit=off"]).await.unwrap();
    let store = open(&server.url()).await;
    let mut last = cycle(&store).await;
    for step in [1, 50, 99_000, 100_000, 250_000, 1_i64 << 40] {
        let one = request("raised");
        let Standing::Held(_) = store.acquire(&one).await.unwrap() else { panic!("busy") };
        let token = FencingToken::new(last + step).unwrap();
        assert_eq!(store.raise(&one.ticket(), token).await.unwrap(), Raise::Raised);
        assert_eq!(store.release(&one.ticket()).await.unwrap(), Release::Released);
        last = cycle(&store).await;
        assert!(last > token.get(), "token {last} after {}", token.get());
        assert!(last < token.get() + 100, "numbers are thrown away: {last} after {}", token.get());
    }
    let one = request("raised");
    let Standing::Held(_) = store.acquire(&one).await.unwrap() else { panic!("busy") };
    // Beyond it begins a token epoch, which only a client of that epoch may do.
    for later in [1 << 48, i64::MAX] {
        let error = store.raise(&one.ticket(), FencingToken::new(later).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    assert!(cycle(&store).await < last + 100, "a refused raise took effect");
}

/// A dump ends with the values of the sequences: by then clients of the next token epoch may have begun it.
#[tokio::test]
async fn an_epoch_is_begun_again_where_the_end_of_a_restore_takes_it_back() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let before = cycle(&open(&server.url()).await).await;
    let epoch = TokenEpoch::new(1).unwrap();
    let store = open(&server.url()).await;
    let mut last = 0;
    for _ in 0..3 {
        let one = request("n").epoch(epoch);
        let Standing::Held(grant) = store.acquire(&one).await.unwrap() else { panic!("busy") };
        assert!(
            grant.token.get() > last && TokenEpoch::of(grant.token.get()) == epoch,
            "{grant:?} after {last}"
        );
        last = grant.token.get();
        assert_eq!(store.release(&one.ticket()).await.unwrap(), Release::Released);
        server.say(&format!("SELECT pg_catalog.setval('onelock.number', {before}, true)")).await.unwrap();
        let old = store.acquire(&request("old")).await.unwrap_err();
        assert_eq!(old.kind(), ErrorKind::InvalidConfig, "a client that does not know the epoch: {old}");
    }
}
