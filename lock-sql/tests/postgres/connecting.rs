//! The ways to a server that are not a host and a port: a Unix socket, a pool of the application's, several hosts, a
//! callback for credentials.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onelock_conformance::churn::Churn;
use onelock_conformance::faults::{Link, Proxy};
use onelock_core::{
    Backend, Credentials, ErrorKind, Locks, Release, Renewal, Renewed, Request, Secret, Settings, Standing,
    Wake,
};
use onelock_sql::{PostgresBackend, PostgresConfig};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer, standby};
use crate::server::{open, try_open};
use crate::sharing::request;

/// Far more than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A waiter of `there` is handed the lock that `here` has.
async fn excludes(here: &dyn Backend, there: &dyn Backend, on: &str) {
    let (first, second) = (request(on), request(on));
    assert!(matches!(here.acquire(&first).await.unwrap(), Standing::Held(_)));
    assert!(matches!(there.acquire(&second).await.unwrap(), Standing::Waiting(_)));
    assert_eq!(here.release(&first.ticket()).await.unwrap(), Release::Released);
    let woken = tokio::time::timeout(PATIENCE, there.wait(&second.ticket())).await.unwrap();
    assert!(matches!(woken.unwrap(), Wake::Held(_)));
    assert_eq!(there.release(&second.ticket()).await.unwrap(), Release::Released);
}

/// Renews until the answer satisfies `wanted`.
async fn renewed(
    store: &dyn Backend,
    held: &Request,
    wanted: impl Fn(&onelock_core::Result<Renewed>) -> bool,
) {
    let due = Renewal::new(held.ticket(), held.lease, held.waiter_lease);
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = store.renew(std::slice::from_ref(&due)).await.remove(0);
        if wanted(&answer) {
            return;
        }
        assert!(Instant::now() < end, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_unix_socket_leads_to_the_same_locks() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().to_str().unwrap();
    let server = PostgresServer::start(&[&format!("unix_socket_directories={path}")]).await.unwrap();
    let by_host = open(&server.url()).await;
    for option in ["host", "socket"] {
        let url = format!("postgres://postgres@/postgres?{option}={path}&port={}", server.port());
        let by_socket = open(&url).await;
        assert!(by_socket.info().address.contains(path), "{}", by_socket.info().address);
        excludes(&by_socket, &by_host, "n").await;
        excludes(&by_host, &by_socket, "n").await;
    }
    let error = try_open(&format!("postgres://postgres@/postgres?host={path}&port=1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// The locks of a pool go where it leads, and not over its connections: the pool may be exhausted.
#[tokio::test]
async fn a_pool_of_the_applications_is_connected_as() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("CREATE ROLE secret LOGIN SUPERUSER PASSWORD 'before'").await.unwrap();
    let by_url = open(&server.url()).await;
    let options = |password: &str| {
        let options = PgConnectOptions::new().host("127.0.0.1").port(server.port()).username("secret");
        options.password(password).database("postgres").application_name("theirs")
    };
    let pool: PgPool = PgPoolOptions::new().max_connections(1).connect_with(options("before")).await.unwrap();
    let _taken = pool.acquire().await.unwrap();
    let config = PostgresConfig::of_pool(pool.clone());
    assert!(!format!("{config:?}").contains("before"), "{config:?}");
    let by_pool = PostgresBackend::open(config.clone()).await.unwrap();
    assert_eq!(by_pool.info().address, format!("postgres://127.0.0.1:{}/postgres", server.port()));
    excludes(&by_url, &by_pool, "n").await;
    excludes(&by_pool, &by_url, "n").await;

    // The pool learns of a new password, and with it the locks.
    let kept = request("kept");
    assert!(matches!(by_pool.acquire(&kept).await.unwrap(), Standing::Held(_)));
    admin.execute("ALTER ROLE secret PASSWORD 'after'").await.unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'theirs'";
    admin.execute(cut).await.unwrap();
    renewed(&by_pool, &kept, |answer| answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Denied)).await;
    pool.set_connect_options(options("after"));
    renewed(&by_pool, &kept, |answer| matches!(answer, Ok(Renewed::Held(_)))).await;

    let mut named = config;
    named.username = Some("me".to_owned());
    assert_eq!(PostgresBackend::open(named).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// Verbs are prepared once per connection of ours, whatever the connections of the pool keep.
#[tokio::test]
async fn a_pool_without_prepared_statements_costs_no_round_trip() {
    let (server, link) = (PostgresServer::start(&[]).await.unwrap(), Link::new());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into(), &link).await.unwrap();
    let options = server.url().parse::<PgConnectOptions>().unwrap().port(proxy.address().port());
    let pool = PgPoolOptions::new().connect_lazy_with(options.statement_cache_capacity(0));
    let store = PostgresBackend::open(PostgresConfig::of_pool(pool)).await.unwrap();
    let cycle = async || {
        let request = request("cycle");
        assert!(matches!(store.acquire(&request).await.unwrap(), Standing::Held(_)));
        assert_eq!(store.release(&request.ticket()).await.unwrap(), Release::Released);
    };
    cycle().await;
    let before = link.turns.get();
    for _ in 0..10 {
        cycle().await;
    }
    let made = link.turns.get() - before;
    assert!(made < 30, "{made} round trips of ten cycles");
}

/// The password is changed while a lock is held: the next connection asks for the new one, and nothing is lost.
#[tokio::test]
async fn each_connection_asks_for_its_credentials() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    admin.execute("CREATE ROLE secret LOGIN SUPERUSER PASSWORD 'before'").await.unwrap();
    let secret = Arc::new(Mutex::new("before".to_owned()));
    let source = Arc::clone(&secret);
    let mut config = PostgresConfig::new("127.0.0.1", server.port());
    config.database = Some("postgres".to_owned());
    config.credentials = Some(Credentials::new(move || {
        let password = source.lock().unwrap().clone();
        async move {
            match &*password {
                "" => Err(std::io::Error::other("the vault is sealed")),
                password => Ok(("secret".to_owned(), Secret::new(password))),
            }
        }
    }));
    let store = PostgresBackend::open(config.clone()).await.unwrap();
    let kept = request("kept");
    assert!(matches!(store.acquire(&kept).await.unwrap(), Standing::Held(_)));
    admin.execute("ALTER ROLE secret PASSWORD 'after'").await.unwrap();
    secret.lock().unwrap().clear();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'secret'";
    admin.execute(cut).await.unwrap();
    let sealed = |answer: &onelock_core::Result<Renewed>| {
        answer.as_ref().is_err_and(|e| {
            let text = e.to_string();
            assert!(!text.contains("before") && !text.contains("after"), "{text}");
            text.contains("the vault is sealed") && e.kind() == ErrorKind::Unavailable
        })
    };
    renewed(&store, &kept, sealed).await;
    "after".clone_into(&mut secret.lock().unwrap());
    renewed(&store, &kept, |answer| matches!(answer, Ok(Renewed::Held(_)))).await;
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'secret' AND query LIKE 'LISTEN%'";
    let end = Instant::now() + PATIENCE;
    while admin.fetch_one(listening).await.unwrap().get::<i64, _>(0) == 0 {
        assert!(Instant::now() < end, "nobody listens any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    config.username = Some("me".to_owned());
    assert_eq!(PostgresBackend::open(config).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// The address of no server changes: the clients find the standby that was promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_of_several_hosts_that_takes_writes_is_used() {
    let server = PostgresServer::start(&[]).await.unwrap();
    let standby = standby::synchronous(&server).await.unwrap();
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?request_timeout=2s&connect_timeout=4s",
        standby.port(),
        server.port()
    );
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut settings = Settings::default();
        settings.ttl = Duration::from_secs(6);
        clients.push(Locks::builder(Arc::new(open(&url).await)).settings(settings).build().unwrap());
    }
    let churn = Churn::start(clients, "hosts", 7).await.unwrap();
    churn.goes_on(10, PATIENCE).await.unwrap();
    server.process.kill().unwrap();
    standby::promote(&standby).await.unwrap();
    churn.goes_on(10, PATIENCE).await.unwrap();
    let report = churn.stop().await.unwrap();
    report.check().unwrap();
    assert_eq!(report.kept + report.kept_lost, 3, "{report:?}");
}

/// Locks on one would not exclude those on the other.
#[tokio::test]
async fn two_hosts_that_both_take_writes_are_refused() {
    let (one, two) = (PostgresServer::start(&[]).await.unwrap(), PostgresServer::start(&[]).await.unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", one.port(), two.port());
    let error = try_open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("both take writes"), "{error}");
    let read_only = PgConnectOptions::new().host("127.0.0.1").port(two.port()).username("postgres");
    let mut admin = read_only.connect().await.unwrap();
    admin.execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    let end = Instant::now() + PATIENCE;
    while let Err(error) = try_open(&url).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a server takes writes from now on. Nothing is restarted, and no connection ends.
async fn set_primary(server: &PostgresServer, is: bool) {
    let mut admin = server.admin().await.unwrap();
    let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {}", if is { "off" } else { "on" });
    admin.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
}

/// The old primary goes on without taking writes, and keeps the connection that listens there.
#[tokio::test]
async fn promotions_on_the_new_primary_are_heard() {
    let (one, two) = (PostgresServer::start(&[]).await.unwrap(), PostgresServer::start(&[]).await.unwrap());
    // It makes the schema before the switch, and serves after it.
    let other = open(&two.url()).await;
    set_primary(&two, false).await;
    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", one.port(), two.port());
    let end = Instant::now() + PATIENCE;
    let store = loop {
        match try_open(&url).await {
            Ok(store) => break store,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    set_primary(&one, false).await;
    set_primary(&two, true).await;
    let (first, second) = (request("n"), request("n"));
    while !matches!(other.acquire(&first).await, Ok(Standing::Held(_))) {
        assert!(Instant::now() < end, "the new primary takes no writes");
    }
    while !matches!(store.acquire(&second).await, Ok(Standing::Waiting(_))) {
        assert!(Instant::now() < end, "the new primary is not found");
    }
    let wait = async || tokio::time::timeout(PATIENCE, store.wait(&second.ticket())).await;
    let lost = wait().await.expect("it listens at the old one for ever").unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
    assert_eq!(wait().await.unwrap().unwrap(), Wake::Ask);
    other.release(&first.ticket()).await.unwrap();
    while wait().await.expect("it was not told").unwrap() == Wake::Ask {
        renewed(&store, &second, Result::is_ok).await;
    }
}
