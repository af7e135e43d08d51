//! Behind a pooler that gives each transaction another session, and one that does not.

use std::time::Duration;

use onelock_core::store::Checked;
use onelock_core::{Backend, Release, Renewal, Renewed, Standing, Wake};
use onelock_sql::PostgresBackend;
use sqlx::{Executor as _, Row as _};

use crate::postgres_server::pgbouncer::PgBouncer;
use crate::postgres_server::{Admin as _, PostgresServer, connect};
use crate::server::open;
use crate::sharing::request;

/// One client holds, another waits, is promoted and renews; both give back.
async fn hand_over(here: &Checked<PostgresBackend>, there: &Checked<PostgresBackend>) {
    let (first, second) = (request("it's \\ a 'name'"), request("it's \\ a 'name'"));
    let Standing::Held(grant) = here.acquire(&first).await.unwrap() else { panic!() };
    let Standing::Waiting(place) = there.acquire(&second).await.unwrap() else { panic!() };
    assert!(place.token.unwrap() > grant.token);
    let ticket = second.ticket();
    let waited = async {
        // A client that is told to ask asks.
        while there.wait(&ticket).await.unwrap() != Wake::Held(place.token.unwrap()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let released = async { here.release(&first.ticket()).await.unwrap() };
    let ((), released) =
        tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(waited, released) })
            .await
            .unwrap();
    assert_eq!(released, Release::Released);
    let due = [Renewal::new(second.ticket(), second.lease, second.waiter_lease)];
    assert!(
        matches!(there.renew(&due).await[0], Ok(Renewed::Held(held)) if held.token == place.token.unwrap())
    );
    assert_eq!(there.inspect(&second.name).await.unwrap().holders.len(), 1);
    assert_eq!(there.release(&second.ticket()).await.unwrap(), Release::Released);
}

fn count(server: &PostgresServer, what: &str) -> usize {
    server.asked().unwrap().iter().filter(|line| line.contains(what)).count()
}

#[tokio::test]
async fn a_pooler_is_noticed_and_its_sessions_are_left_as_they_were() {
    let settings = ["default_transaction_isolation=serializable", "bytea_output=escape"];
    let server = PostgresServer::start(&settings).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "transaction", &[]).await.unwrap();
    let (here, there) = (open(&pooler.url("postgres")).await, open(&pooler.url("postgres")).await);
    for _ in 0..5 {
        hand_over(&here, &there).await;
    }
    assert!(count(&server, "watched(") > 0, "nobody looked");
    assert_eq!(count(&server, "LISTEN \"onelock"), 0, "a session of the pooler was told to listen");
    assert_eq!(count(&server, "execute sqlx_s"), 0, "something was prepared in a session of the pooler");
    let mut conn = connect(pooler.port(), "postgres", "beside").await.unwrap();
    let rows = conn.fetch_all(sqlx::raw_sql("SHOW default_transaction_isolation")).await.unwrap();
    assert_eq!(rows[0].get::<&str, _>(0), "serializable");
}

/// Every request meets the next session of several, and other clients of the pooler have prepared statements in them, by
/// the very names that the driver would use: whoever relies on a session executes theirs.
#[tokio::test]
async fn the_statements_of_other_clients_of_the_pooler_are_not_met() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let settings = ["server_round_robin=1", "min_pool_size=5", "default_pool_size=5"];
    let pooler = PgBouncer::start(server.port(), "transaction", &settings).await.unwrap();
    let mut beside = connect(pooler.port(), "postgres", "beside").await.unwrap();
    beside.execute(sqlx::raw_sql("CREATE TABLE hit (x text)")).await.unwrap();
    for _ in 0..40 {
        for n in 1..=3 {
            let insert = format!("INSERT INTO hit VALUES ('{n}')");
            let sql = format!(
                "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_prepared_statements WHERE name = 'sqlx_s_{n}') THEN \
                 EXECUTE 'PREPARE sqlx_s_{n} AS {}'; END IF; END $$",
                insert.replace('\'', "''")
            );
            beside.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
        }
    }
    let (here, there) = (open(&pooler.url("postgres")).await, open(&pooler.url("postgres")).await);
    for _ in 0..10 {
        hand_over(&here, &there).await;
    }
    assert!(count(&server, "watched(") > 0, "nobody looked");
    let rows = beside.fetch_all(sqlx::raw_sql("SELECT x FROM hit")).await.unwrap();
    assert!(rows.is_empty(), "{} statements of others were executed", rows.len());
}

#[tokio::test]
async fn a_pooler_that_keeps_a_session_per_client_is_as_good_as_none() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let pooler = PgBouncer::start(server.port(), "session", &[]).await.unwrap();
    let (here, there) = (open(&pooler.url("postgres")).await, open(&pooler.url("postgres")).await);
    hand_over(&here, &there).await;
    assert_eq!(count(&server, "watched("), 0, "somebody looked although notifications come through");
    assert!(count(&server, "execute sqlx_s") > 0, "the statements are not prepared");
}
