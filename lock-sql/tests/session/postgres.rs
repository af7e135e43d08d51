//! What session locks do on PostgreSQL's server.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::postgres_server::pgbouncer::PgBouncer;
use async_trait::async_trait;
use onelock_conformance::harness::open_by;
use onelock_core::{Driver, ErrorKind, HolderId, LockName, Locks, Mode, Renewal, Renewed, Request, Standing};
use onelock_sql::POSTGRES_SESSION_DRIVER;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::postgres_harness::{LOCKS, start};
use crate::postgres_server::{Admin as _, PostgresServer, standby};
use crate::queue::{made_once, no_setting_ends_a_wait};
use crate::server::{PATIENCE, Server, acquire, open, soon, tests_on, until_waiting};
use crate::way::{Blow, Way};

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

    async fn sessions(&self) -> Vec<String> {
        texts(self, "SELECT pid::text FROM pg_stat_activity WHERE usename = 'onelock'").await
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
    // As tools that give each login a name of its own do. It may look at no session of the login.
    let owner = "CREATE ROLE owner; GRANT owner TO onelock; GRANT USAGE ON SCHEMA onelock_session TO owner; \
                 GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onelock_session TO owner";
    admin.execute(sqlx::raw_sql(owner)).await.unwrap();
    for setting in [
        "role = owner",
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
    let log = server.process.log();
    assert!(log.contains("FATAL:  "), "no connection was refused: this shows nothing");
}

/// Sessions are made where the primary is, whatever stands first in the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_session_finds_the_primary() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let standby = standby::synchronous(&server).await.unwrap();
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

/// A client waits on a primary that falls silent, and on the new one a session of the same process id waits for something else: that
/// says nothing of the client's place, which is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_another_server_says_nothing_of_a_place() {
    let (old, new) = (PostgresServer::start_with(&[]).await, PostgresServer::start_with(&[]).await);
    let read_only = async |server: &PostgresServer, on: &str| {
        server.say(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}")).await.unwrap();
        server.say("SELECT pg_reload_conf()").await.unwrap();
        let end = Instant::now() + PATIENCE;
        while server.say("SHOW default_transaction_read_only").await.unwrap() != on {
            assert!(Instant::now() < end, "the setting is not read");
        }
    };
    let (mut before, mut same) = (new.admin().await.unwrap(), new.admin().await.unwrap());
    let pid: i32 = same.fetch_one("SELECT pg_backend_pid()").await.unwrap().get(0);
    before.execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let waits = tokio::spawn(async move { same.execute("SELECT pg_advisory_lock(7)").await.map(drop) });
    assert_eq!(until_waiting(&new, 1).await, [pid.to_string()]);
    read_only(&new, "on").await;
    let way = Way::to(as_process(old.port(), pid).await).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", way.port(), new.port());
    let url = format!(
        "postgres+session://onelock@{hosts}/postgres?migrate=false&sslmode=disable&request_timeout=4s"
    );
    let store = open_by(&POSTGRES_SESSION_DRIVER, &url).await.unwrap();
    let held = old.open("").await.mutex("n").unwrap().acquire().await.unwrap();
    let [n, seen] = ["n", "seen"].map(|name| LockName::new(name).unwrap());
    let waiter = Request::new(n, HolderId::random().unwrap(), Mode::Exclusive, PATIENCE);
    let due = [Renewal::new(waiter.ticket(), waiter.lease, waiter.waiter_lease)];
    let joined = store.acquire(&waiter).await;
    assert!(matches!(joined, Ok(Standing::Waiting(_))), "{joined:?}");
    assert!(matches!(store.renew(&due).await[..], [Ok(Renewed::Waiting(_))]), "this shows nothing");
    way.strike(0..way.count(), Blow::Silence).await;
    read_only(&old, "on").await;
    read_only(&new, "off").await;
    let there = new.open("").await.mutex("seen").unwrap().acquire().await.unwrap();
    let end = Instant::now() + PATIENCE;
    while !store.inspect(&seen).await.is_ok_and(|line| line.holders.len() == 1) {
        assert!(Instant::now() < end, "it does not look at the new primary");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let renewed = store.renew(&due).await;
    assert!(renewed[0].is_err(), "{renewed:?}");
    assert!(!waits.is_finished(), "this shows nothing");
    drop((held, there, before));
}

/// The port of a way to the server on which the store's first session has this process id: in what it is told, and in what it asks.
async fn as_process(server: u16, told: i32) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let first = Arc::<OnceLock<i32>>::default();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let (requests, to_client) = client.into_split();
            let (replies, to_server) = server.into_split();
            let asked = Arc::clone(&first);
            tokio::spawn(altered(requests, to_server, move |piece| {
                if let Some(real) = asked.get() {
                    swap(piece, &long(told), &long(*real));
                }
            }));
            let (first, mut own) = (Arc::clone(&first), None);
            tokio::spawn(altered(replies, to_client, move |piece| {
                // Behind the login the server says which process it is.
                let key = piece.windows(9).find(|part| part.starts_with(b"K\0\0\0\x0c"));
                own = own.or(key.map(|part| i32::from_be_bytes(part[5..].try_into().unwrap())));
                let Some(own) = own else { return };
                // In text behind what says that it is no standby; and as a number. Each with its length in front.
                let text =
                    |id: i32| format!("\0\0\0\x01f\0\0\0{}{id}", char::from(own.to_string().len() as u8));
                let number = |id: i32| [4_i32.to_be_bytes(), id.to_be_bytes()].concat();
                assert_eq!(text(own).len(), text(told).len(), "{own} has not as many digits as {told}");
                if piece.windows(text(own).len()).any(|part| part == text(own).as_bytes()) {
                    let _ = first.set(own);
                }
                if let Some(real) = first.get() {
                    swap(piece, &long(*real), &long(told));
                }
                if first.get() == Some(&own) {
                    swap(piece, text(own).as_bytes(), text(told).as_bytes());
                    swap(piece, &number(own), &number(told));
                }
            }));
        }
    });
    port
}

/// A number in eight bytes, with its length in front.
fn long(id: i32) -> Vec<u8> {
    [&8_i32.to_be_bytes()[..], &i64::from(id).to_be_bytes()].concat()
}

fn swap(piece: &mut [u8], from: &[u8], to: &[u8]) {
    while let Some(at) = piece.windows(from.len()).position(|part| part == from) {
        piece[at..at + from.len()].copy_from_slice(to);
    }
}

async fn altered(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut alter: impl FnMut(&mut [u8]) + Send) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        alter(&mut bytes[..count]);
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
