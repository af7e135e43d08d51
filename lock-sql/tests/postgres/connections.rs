//! A server with few connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::postgres_server::pgbouncer::PgBouncer;
use futures_util::future::join_all;
use onelock_core::store::Checked;
use onelock_core::{Backend as _, ErrorKind, Locks, Release, Standing};
use onelock_sql::{PostgresBackend, PostgresConfig};
use sqlx::postgres::PgConnection;
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;
use crate::way::{Blow, Way};

/// What a role without rights of its own gets: five connections.
const FEW: &[&str] = &["max_connections=8", "superuser_reserved_connections=3", "max_wal_senders=0"];

/// Takes and gives back so many locks at once.
async fn at_once(store: &Checked<PostgresBackend>, many: usize) {
    let cycles = (0..many).map(|i| async move {
        let one = request(&format!("n-{i}-{:p}", store));
        let Standing::Held(_) = store.acquire(&one).await? else { panic!("busy") };
        assert_eq!(store.release(&one.ticket()).await?, Release::Released);
        Ok::<(), onelock_core::Error>(())
    });
    for done in join_all(cycles).await {
        done.unwrap();
    }
}

async fn connections(admin: &mut PgConnection) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onelock'";
    admin.fetch_one(sql).await.unwrap().get(0)
}

/// Two clients would have ten connections, and make do with five.
#[tokio::test]
async fn a_refused_connection_is_waited_for() {
    let server = PostgresServer::start(FEW).await.unwrap();
    server.migrate("app").await.unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres?migrate=false", server.port());
    let (here, there) = (open(&url).await, open(&url).await);
    for _ in 0..3 {
        tokio::join!(at_once(&here, 40), at_once(&there, 40));
    }
    let log = server.process.log();
    assert!(log.contains("FATAL:  "), "no connection was refused: this shows nothing");
}

/// What a client needed for a moment others can have later.
#[tokio::test]
async fn idle_connections_are_closed() {
    let server = PostgresServer::start(FEW).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres?migrate=false", server.port());
    let store = open(&url).await;
    at_once(&store, 40).await;
    assert!(connections(&mut admin).await > 2, "there is nothing to close");
    let end = Instant::now() + Duration::from_secs(90);
    while connections(&mut admin).await > 2 {
        assert!(Instant::now() < end, "they stay");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    at_once(&store, 40).await;
}

/// Who gives up opening, as by a time-out around it, leaves nothing behind that listens.
#[tokio::test]
async fn an_opening_that_is_given_up_keeps_no_connection() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let config = PostgresConfig::from_url(server.url().parse().unwrap()).unwrap();
    let open = || Box::pin(PostgresBackend::open(config.clone()));
    let mut opening = open();
    // The second one is to listen; it was quicker than this look where all is done.
    while connections(&mut admin).await < 2 {
        if futures_util::poll!(&mut opening).is_ready() {
            opening = open();
        }
    }
    drop(opening);
    let end = Instant::now() + Duration::from_secs(60);
    while connections(&mut admin).await > 0 {
        assert!(Instant::now() < end, "they stay");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// From version 17 on a server ends sessions whose transactions take too long for the role's `transaction_timeout`, with 25P04.
#[tokio::test]
async fn a_session_that_was_ended_for_its_transaction_is_replaced() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let store = open(&server.url()).await;
    let refuses_once = "CREATE SEQUENCE refused; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                        IF nextval('public.refused') = 1 THEN RAISE 'ended' USING ERRCODE = '25P04'; END IF; \
                        RETURN NEW; END $$; CREATE TRIGGER refuse BEFORE INSERT ON onelock.line FOR EACH ROW \
                        EXECUTE FUNCTION refuse()";
    server.admin().await.unwrap().execute(sqlx::raw_sql(refuses_once)).await.unwrap();
    let joined = store.acquire(&request("n")).await;
    assert!(matches!(joined, Ok(Standing::Held(_))), "{joined:?}");
}

/// A name stays locked by a transaction that somebody left open: who asks for it in vain, again and again, leaves no session waiting
/// on, until the server has no connection left for anybody.
#[tokio::test]
async fn requests_that_were_given_up_do_not_wait_on() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut forgotten = server.admin().await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    let direct = format!("{}?request_timeout=500ms", server.url());
    for url in [direct, format!("{}?request_timeout=500ms", pooler.url("postgres"))] {
        let store = open(&url).await;
        forgotten.execute("BEGIN; SELECT onelock.evict('forgotten', 17)").await.unwrap();
        let error = store.acquire(&request("forgotten").queue(false)).await.unwrap_err();
        assert!(error.is_unclear(), "{error}");
        store.close().await.unwrap();
        let mut admin = server.admin().await.unwrap();
        let (waiting, end) = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
            Instant::now() + Duration::from_secs(20),
        );
        while admin.fetch_one(waiting).await.unwrap().get::<i64, _>(0) > 0 {
            assert!(Instant::now() < end, "a session waits for a client that is gone");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        forgotten.execute("ROLLBACK").await.unwrap();
    }
}

/// Somebody has evicted one of the locks of a client and not committed: the others are renewed, also where the role's statements may
/// take less time than that wait.
#[tokio::test]
async fn a_transaction_that_was_left_open_costs_no_other_lease() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    let mut forgotten = server.admin().await.unwrap();
    for (setting, url) in [("0", server.url()), ("300ms", server.url()), ("300ms", pooler.url("postgres"))] {
        let set = format!("ALTER ROLE postgres SET statement_timeout = '{setting}'");
        forgotten.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(set))).await.unwrap();
        let store = open(&url).await;
        let (one, other) = (request("one"), request("other"));
        let Standing::Held(grant) = store.acquire(&one).await.unwrap() else { panic!("busy") };
        assert!(matches!(store.acquire(&other).await.unwrap(), Standing::Held(_)));
        let evict = format!("BEGIN; SELECT onelock.evict('one', {})", grant.token);
        forgotten.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(evict))).await.unwrap();
        let due = [&one, &other].map(|r| onelock_core::Renewal::new(r.ticket(), r.lease, r.waiter_lease));
        let renewed = store.renew(&due).await;
        assert!(renewed[0].as_ref().is_err_and(onelock_core::Error::is_unclear), "{renewed:?}");
        assert!(matches!(renewed[1], Ok(onelock_core::Renewed::Held(_))), "{setting}: {renewed:?}");
        forgotten.execute("COMMIT").await.unwrap();
        store.release(&other.ticket()).await.unwrap();
    }
}

/// Nor does the time cost one in which the renewal in the way is tried.
#[tokio::test]
async fn a_renewal_in_vain_keeps_no_other_waiting() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let store = open(&format!("{}?request_timeout=10s", server.url())).await;
    let locks = Locks::builder(Arc::new(store)).build().unwrap();
    let take = async |name| {
        locks.mutex(name).unwrap().ttl(Duration::from_secs(12)).unwrap().acquire().await.unwrap()
    };
    let (one, other) = (take("one").await, take("other").await);
    let seen = other.deadline();
    let mut forgotten = server.admin().await.unwrap();
    let evict = format!("BEGIN; SELECT onelock.evict('one', {})", one.token().unwrap());
    forgotten.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(evict))).await.unwrap();
    other.renewed(seen).await.expect("lost with the other one");
}

/// All connections fall silent, as where something between has forgotten them: a renewal that finds out is one, whatever
/// their number.
#[tokio::test]
async fn connections_that_fall_silent_together_are_found_out_together() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let way = Way::to(server.port()).await;
    let url =
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable&request_timeout=1s", way.port());
    let store = open(&url).await;
    let held = request("held");
    assert!(matches!(store.acquire(&held).await.unwrap(), Standing::Held(_)));
    // All four are used.
    let mut admin = server.admin().await.unwrap();
    while connections(&mut admin).await < 5 {
        at_once(&store, 40).await;
    }
    way.strike(0..way.count(), Blow::Silence).await;
    let due = onelock_core::Renewal::new(held.ticket(), held.lease, held.waiter_lease);
    let first = store.renew(std::slice::from_ref(&due)).await.remove(0);
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Timeout);
    let second = store.renew(&[due]).await.remove(0);
    assert!(matches!(second, Ok(onelock_core::Renewed::Held(_))), "{second:?}");
}

/// The names of a batch of waiters are locked together: more than this server has room for.
#[tokio::test]
async fn a_large_batch_of_waiters_needs_few_locks() {
    let few = [FEW, &["max_locks_per_transaction=10"]].concat();
    let server = PostgresServer::start(&few).await.unwrap();
    let (here, there) = (open(&server.url()).await, open(&server.url()).await);
    let mut due = Vec::new();
    for i in 0..900 {
        let name = format!("n-{i}");
        let Standing::Held(_) = here.acquire(&request(&name)).await.unwrap() else { panic!("busy") };
        let waiter = request(&name);
        let Standing::Waiting(_) = there.acquire(&waiter).await.unwrap() else { panic!("free") };
        due.push(onelock_core::Renewal::new(waiter.ticket(), waiter.lease, waiter.waiter_lease));
    }
    // As after a crash: nothing is known of any line.
    server.admin().await.unwrap().execute("DELETE FROM onelock.front").await.unwrap();
    for answer in there.renew(&due).await {
        assert!(matches!(answer, Ok(onelock_core::Renewed::Waiting(_))), "{answer:?}");
    }
}
