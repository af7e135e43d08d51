//! Schemas, sessions and connections.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use onelock_core::store::Checked;
use onelock_core::{Backend, ErrorKind, Locks, Note, Renewal, Renewed, Standing, StoreUrl, Wake};
use onelock_sql::{PostgresBackend, PostgresConfig};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::sharing::request;

pub(crate) async fn open(url: &str) -> Checked<PostgresBackend> {
    try_open(url).await.unwrap()
}

pub(crate) async fn try_open(url: &str) -> onelock_core::Result<Checked<PostgresBackend>> {
    PostgresBackend::open(PostgresConfig::from_url(url.parse::<StoreUrl>()?)?).await
}

#[tokio::test]
async fn a_schema_of_others_is_left_alone() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin
        .execute("CREATE SCHEMA theirs; CREATE TABLE theirs.line (x int); INSERT INTO theirs.line VALUES (7)")
        .await
        .unwrap();
    let error = try_open(&format!("{}?schema=theirs", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let rows = admin.fetch_all("SELECT x FROM theirs.line").await.unwrap();
    assert_eq!((rows.len(), rows[0].get::<i32, _>(0)), (1, 7));
    // Beside it there is room, and two schemas do not meet.
    let (one, two) = (
        open(&format!("{}?schema=one", server.url())).await,
        open(&format!("{}?schema=two", server.url())).await,
    );
    for store in [one, two] {
        assert!(matches!(store.acquire(&request("n")).await.unwrap(), Standing::Held(_)));
    }
    admin.execute("UPDATE one.version SET version = 99").await.unwrap();
    let error = try_open(&format!("{}?schema=one", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_schema_may_be_called_as_a_word_of_the_language() {
    let server = PostgresServer::start(&[]).await.unwrap();
    for schema in ["select", "user", "_", "a1"] {
        let store = open(&format!("{}?schema={schema}", server.url())).await;
        let Standing::Held(_) = store.acquire(&request("n")).await.unwrap() else { panic!("{schema}") };
    }
}

#[tokio::test]
async fn many_open_a_new_database_at_once() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let url = server.url();
    let stores = futures_util::future::join_all((0..16).map(|_| open(&url))).await;
    let held = futures_util::future::join_all(
        stores
            .iter()
            .map(|store| async { matches!(store.acquire(&request("n")).await.unwrap(), Standing::Held(_)) }),
    );
    assert_eq!(held.await.into_iter().filter(|held| *held).count(), 1);
}

#[tokio::test]
async fn the_isolation_level_is_pinned_and_joins_are_durable() {
    let settings = ["default_transaction_isolation=serializable", "synchronous_commit=off"];
    let server = PostgresServer::start(&settings).await.unwrap();
    let store = open(&server.url()).await;
    assert!(matches!(store.acquire(&request("n")).await.unwrap(), Standing::Held(_)));
    let mut admin = server.admin().await.unwrap();
    let error =
        admin.execute("SELECT onelock.lock_name('n'), onelock.lock_names(ARRAY['n'])").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "25001");
    // What the functions set lasts for their transaction.
    let level = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT onelock.raise('n', '\\x00', 1)";
    admin.execute(sqlx::raw_sql(level)).await.unwrap();
    let row = admin.fetch_one("SELECT current_setting('synchronous_commit')").await.unwrap();
    assert_eq!(row.get::<&str, _>(0), "on");
    admin.execute("COMMIT").await.unwrap();
}

/// What waits for less than the disk of a synchronous standby is not enough, and what waits for more stays.
#[tokio::test]
async fn joins_wait_for_the_disk_whatever_the_session_says() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let _store = open(&server.url()).await;
    let mut admin = server.admin().await.unwrap();
    for level in ["off", "local", "remote_write", "on", "remote_apply"] {
        let sql =
            format!("BEGIN; SET LOCAL synchronous_commit = {level}; SELECT onelock.raise('n', '\\x00', 1)");
        admin.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
        let row = admin.fetch_one("SELECT current_setting('synchronous_commit')").await.unwrap();
        let expected = if level == "remote_apply" { level } else { "on" };
        assert_eq!(row.get::<&str, _>(0), expected, "where the session says {level}");
        admin.execute("ROLLBACK").await.unwrap();
    }
}

/// A database that has not every letter keeps the note with escapes for those of more than one byte.
#[tokio::test]
async fn a_database_of_few_letters_takes_every_note() {
    let server = PostgresServer::start(&[]).await.unwrap();
    for (encoding, shown) in
        [("LATIN1", "\\320\\266uk \\303\\274"), ("SQL_ASCII", "жuk ü"), ("UTF8", "жuk ü")]
    {
        let few = format!("CREATE DATABASE in_{encoding} ENCODING '{encoding}' TEMPLATE template0");
        server.say(&few.to_lowercase()).await.unwrap();
        let at = format!("postgres://postgres@127.0.0.1:{}/in_{encoding}", server.port()).to_lowercase();
        for durability in ["durable", "relaxed"] {
            let store = open(&format!("{at}?durability={durability}")).await;
            for (note, shown) in [("host:1 plain", "host:1 plain"), ("жuk ü", shown)] {
                let one = request("ж").note(Note::new(note).unwrap());
                assert!(matches!(store.acquire(&one).await.unwrap(), Standing::Held(_)));
                assert_eq!(store.inspect(&one.name).await.unwrap().holders[0].note.to_string(), shown);
                store.release(&one.ticket()).await.unwrap();
            }
        }
    }
}

/// Somebody makes the schema by hand and has not committed it.
#[tokio::test]
async fn opening_does_not_wait_for_ever() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut forgotten = server.admin().await.unwrap();
    forgotten.execute("BEGIN; CREATE SCHEMA onelock").await.unwrap();
    let opening = async { try_open(&server.url()).await.unwrap_err() };
    let error = tokio::time::timeout(Duration::from_secs(90), opening).await.expect("it waits for ever");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    forgotten.execute("ROLLBACK").await.unwrap();
    open(&server.url()).await;
}

#[tokio::test]
async fn a_thousand_waiters_need_a_handful_of_connections() {
    let server = PostgresServer::start(&["synchronous_commit=off"]).await.unwrap();
    let store = Arc::new(open(&server.url()).await);
    let first = request("n");
    assert!(matches!(store.acquire(&first).await.unwrap(), Standing::Held(_)));
    let waiters: Vec<_> = (0..1_000).map(|_| request("n")).collect();
    let joined = futures_util::future::join_all(waiters.iter().map(|waiter| store.acquire(waiter))).await;
    assert!(joined.iter().all(|answer| matches!(answer, Ok(Standing::Waiting(_)))));
    let tickets: Vec<_> = waiters.iter().map(onelock_core::Request::ticket).collect();
    let mut waits: Vec<_> = tickets.iter().map(|ticket| Box::pin(store.wait(ticket))).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().now_or_never().is_none());
    }
    let mut admin = server.admin().await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onelock'";
    let connections: i64 = admin.fetch_one(sql).await.unwrap().get(0);
    assert!(connections <= 5, "{connections} connections");
    // In the order of their tokens, each told and nobody else.
    store.release(&first.ticket()).await.unwrap();
    let mut first_tokens: Vec<_> = joined
        .iter()
        .enumerate()
        .filter_map(|(i, answer)| match answer {
            Ok(Standing::Waiting(place)) => Some((place.token.unwrap(), i)),
            _ => None,
        })
        .collect();
    first_tokens.sort();
    for &(token, i) in &first_tokens[..5] {
        assert_eq!(waits[i].as_mut().await.unwrap(), Wake::Held(token));
        store.release(&tickets[i]).await.unwrap();
    }
}

#[tokio::test]
async fn waiters_without_notifications_are_looked_after() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let (here, there) = (open(&server.url()).await, open(&server.url()).await);
    let (first, second) = (request("n"), request("n"));
    assert!(matches!(here.acquire(&first).await.unwrap(), Standing::Held(_)));
    let Standing::Waiting(place) = there.acquire(&second).await.unwrap() else { panic!() };
    // As behind a pooler: what the server tells arrives nowhere.
    let mut admin = server.admin().await.unwrap();
    admin.execute("UPDATE onelock.line SET inbox = 'nobody'").await.unwrap();
    let mut listeners = admin
        .fetch_all("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        .await
        .unwrap()
        .iter()
        .map(|row| row.get::<i32, _>(0))
        .collect::<Vec<_>>();
    assert_eq!(listeners.len(), 2);
    let mut beside = server.admin_beside().await.unwrap();
    beside.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false").await.unwrap();
    for pid in listeners.drain(..) {
        admin.execute(AssertSqlSafe(format!("SELECT pg_terminate_backend({pid})"))).await.unwrap();
    }
    let ticket = second.ticket();
    let released = async {
        here.release(&first.ticket()).await.unwrap();
    };
    let waited = async {
        loop {
            match there.wait(&ticket).await {
                Ok(Wake::Held(token)) => break token,
                Ok(Wake::Ask) => tokio::time::sleep(Duration::from_millis(5)).await,
                // Once, since what notifies was lost.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    let both = async { tokio::join!(waited, released) };
    let (token, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it holds");
    assert_eq!(token, place.token.unwrap());
}

/// What a fail-over does whose new primary is there at once: it has lost the entries, and no call has failed.
#[tokio::test]
async fn a_waiter_whose_entry_went_with_its_connection_joins_again() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let here = open(&server.url()).await;
    assert!(matches!(here.acquire(&request("n")).await.unwrap(), Standing::Held(_)));
    let locks = Locks::builder(Arc::new(open(&server.url()).await)).build().unwrap();
    let lock = locks.mutex("n").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let mut admin = server.admin().await.unwrap();
    let told = "SELECT EXISTS (SELECT FROM onelock.line WHERE inbox <> '')";
    let notified = async {
        while !admin.fetch_one(told).await.unwrap().get::<bool, _>(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), notified).await.unwrap();
    admin.execute("DELETE FROM onelock.line").await.unwrap();
    let lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    admin.execute(lost).await.unwrap();
    let acquired = tokio::time::timeout(Duration::from_secs(60), waiter).await;
    acquired.unwrap().unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_restart_of_the_server_is_survived() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let store = open(&server.url()).await;
    let (first, second) = (request("n"), request("n"));
    let Standing::Held(grant) = store.acquire(&first).await.unwrap() else { panic!() };
    let Standing::Waiting(place) = store.acquire(&second).await.unwrap() else { panic!() };
    server.restart().await.unwrap();
    let due = [&first, &second].map(|r| Renewal::new(r.ticket(), r.lease, r.waiter_lease));
    let answers = store.renew(&due).await;
    assert!(matches!(answers[0], Ok(Renewed::Held(g)) if g.token == grant.token), "{answers:?}");
    assert!(matches!(answers[1], Ok(Renewed::Waiting(p)) if p.token == place.token), "{answers:?}");
    store.release(&first.ticket()).await.unwrap();
    // As a client does: when told to ask, or that the connection was lost, it asks.
    let ticket = second.ticket();
    while !matches!(store.wait(&ticket).await, Ok(Wake::Held(_))) {
        if matches!(store.renew(&due[1..]).await[0], Ok(Renewed::Held(g)) if g.token == place.token.unwrap())
        {
            return;
        }
    }
}
