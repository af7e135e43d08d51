//! What session locks do on PostgreSQL's server.

use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::servers::pgbouncer::PgBouncer;
use onelock_core::{Driver, ErrorKind, Locks};
use onelock_sql::POSTGRES_SESSION_DRIVER;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_harness::{LOCKS, start};
use crate::postgres_server::{Admin as _, PostgresServer};
use crate::queue::{made_once, no_setting_ends_a_wait};
use crate::server::{Server, acquire, open, soon, tests_on, until_waiting};

#[async_trait]
impl Server for PostgresServer {
    const DRIVER: Driver = POSTGRES_SESSION_DRIVER;
    // The third statement that a connection prepares.
    const GIVE: &[u8] = b"\0sqlx_s_3\0";

    async fn start_with(settings: &[&str]) -> Self {
        start(settings).await.unwrap()
    }

    fn at(&self) -> u16 {
        self.port()
    }

    fn url_at(port: u16, options: &str) -> String {
        format!("postgres+session://onelock@127.0.0.1:{port}/postgres?migrate=false&sslmode=disable{options}")
    }

    async fn crash(&self) {
        self.restart().await.unwrap();
    }

    async fn waiting(&self) -> Vec<String> {
        let sql =
            "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted ORDER BY waitstart";
        texts(self, sql).await
    }

    async fn locks(&self) -> Vec<String> {
        texts(self, LOCKS).await
    }
}

async fn texts(server: &PostgresServer, sql: &'static str) -> Vec<String> {
    let rows = server.admin().await.unwrap().fetch_all(sql).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

tests_on! { PostgresServer }

/// What the role's defaults say about time is for other work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_role_end_no_wait() {
    let server = PostgresServer::start_with(&[]).await;
    let mut admin = server.admin().await.unwrap();
    for setting in [
        "statement_timeout = 2000",
        "lock_timeout = 2000",
        "idle_session_timeout = 10000",
        "default_transaction_read_only = on",
    ] {
        let sql = format!("ALTER ROLE onelock SET {setting}");
        admin.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }
    no_setting_ends_a_wait(&server, Duration::from_secs(2), async {}).await;
}

/// Readers share; a writer waits for all of them, and keeps later readers from passing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share() {
    let server = PostgresServer::start_with(&[]).await;
    let (a, b) = (server.open("").await, server.open("").await);
    let read = |locks: &Locks| locks.rwlock("shared").unwrap().read();
    let (one, two) = (read(&a).acquire().await.unwrap(), read(&b).acquire().await.unwrap());
    let shown = a.inspect("shared").await.unwrap();
    assert_eq!(shown.holders.len(), 2);
    assert!(shown.holders.iter().all(|holder| holder.mode == onelock_core::Mode::Shared), "{shown:?}");
    let writer = acquire(&a, "shared");
    until_waiting(&server, 1).await;
    assert!(read(&b).try_acquire().await.unwrap().is_none(), "a reader has passed the writer");
    let tokens = [one.token().unwrap(), two.token().unwrap()];
    one.release().await.unwrap();
    two.release().await.unwrap();
    let writer = soon(writer).await.unwrap().unwrap();
    assert!(tokens.iter().all(|token| writer.token().unwrap() > *token));
    assert!(read(&b).try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
}

/// A pooler that gives each transaction another session is refused, one that does not is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_of_transactions_is_refused() {
    let server = PostgresServer::start_with(&[]).await;
    // As somebody the pooler knows.
    let by = |pooler: &PgBouncer| {
        format!("postgres+session://postgres@127.0.0.1:{}/postgres?migrate=false", pooler.port())
    };
    for settings in [&[][..], &["server_round_robin = 1"]] {
        let pooler = PgBouncer::start(server.port(), "transaction", settings).await.unwrap();
        let error = open::<PostgresServer>(&by(&pooler)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let pooler = PgBouncer::start(server.port(), "session", &[]).await.unwrap();
    let locks = open::<PostgresServer>(&by(&pooler)).await.unwrap();
    let guard = locks.mutex("pooled").unwrap().acquire().await.unwrap();
    assert!(locks.mutex("pooled").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Schemas that are not ours, or not there, are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_not_ours_is_refused() {
    let server = PostgresServer::start_with(&[]).await;
    let mut admin = server.admin().await.unwrap();
    admin.execute("CREATE SCHEMA theirs").await.unwrap();
    admin.execute("CREATE TABLE theirs.things (x integer)").await.unwrap();
    let absent = PostgresServer::url_at(server.port(), "&schema=absent");
    let error = open::<PostgresServer>(&absent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let url = |schema: &str| {
        format!("postgres+session://postgres@127.0.0.1:{}/postgres?schema={schema}", server.port())
    };
    let refused = open::<PostgresServer>(&url("theirs")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Foreign, "{refused}");
    let (_, first) = made_once::<PostgresServer>(&url("made")).await;
    assert_eq!(first.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_waited_for() {
    let few = ["max_connections=8", "superuser_reserved_connections=2", "max_wal_senders=0"];
    let server = PostgresServer::start_with(&few).await;
    crate::turns::a_refused_connection_is_waited_for(&server).await;
    let log = server.log().unwrap();
    assert!(log.contains("FATAL:  "), "no connection was refused: this shows nothing");
}

/// Sessions are made where the primary is, whatever stands first in the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_session_finds_the_primary() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let standby = server.standby().await.unwrap();
    let url = |hosts: &str| format!("postgres+session://postgres@{hosts}/postgres");
    let primary = format!("127.0.0.1:{}", server.port());
    let by_one = open::<PostgresServer>(&url(&primary)).await.unwrap();
    let both = format!("127.0.0.1:{},{primary}", standby.port());
    let by_two = open::<PostgresServer>(&url(&both)).await.unwrap();
    let held = by_one.mutex("n").unwrap().acquire().await.unwrap();
    assert!(by_two.mutex("n").unwrap().try_acquire().await.unwrap().is_none(), "another server's lock");
    held.release().await.unwrap();
    by_two.mutex("n").unwrap().acquire().await.unwrap().release().await.unwrap();
}
