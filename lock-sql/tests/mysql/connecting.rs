//! The ways to a server that are not a host and a port: a Unix socket, a pool of the application's, several hosts, a
//! callback for credentials.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onelock_conformance::faults::{Link, Proxy};
use onelock_core::{Backend, Credentials, ErrorKind, Release, Renewal, Renewed, Request, Secret};
use onelock_sql::{MySqlBackend, MySqlConfig};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{config, connect, held, request, waiting};

const PATIENCE: Duration = Duration::from_secs(60);

fn exclusive(on: &str) -> Request {
    request(on, onelock_core::Mode::Exclusive)
}

/// A waiter of `there` is handed the lock that `here` has.
async fn excludes(here: &dyn Backend, there: &dyn Backend, on: &str) {
    let (first, second) = (exclusive(on), exclusive(on));
    held(here, &first).await;
    waiting(there, &second).await;
    assert_eq!(here.release(&first.ticket()).await.unwrap(), Release::Released);
    // A poll sees the change; the lock itself is asked for.
    tokio::time::timeout(PATIENCE, there.wait(&second.ticket())).await.unwrap().unwrap();
    held(there, &second).await;
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

/// Ends the sessions of this user.
async fn cut(server: &MariaDb, user: &str) {
    let sessions = format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{user}' AND HOST LIKE '127.0.0.1%' AND ID <> CONNECTION_ID()"
    );
    for id in server.texts(&sessions).await.unwrap() {
        // It may have ended by itself.
        let _ = server.run(&format!("KILL {id}")).await;
    }
}

#[tokio::test]
async fn a_unix_socket_leads_to_the_same_locks() {
    let server = MariaDb::start(&[]).await.unwrap();
    let path = server.socket();
    // The user of the harness is for the host; who comes by a socket is on `localhost`.
    server.run("CREATE USER beside@'localhost' IDENTIFIED BY 'pw'").await.unwrap();
    server.run("GRANT ALL ON *.* TO beside@'localhost'").await.unwrap();
    let by_host = connect(&server.url()).await;
    let by_socket = connect(&format!("mysql://beside:pw@/locks?socket={}", path.display())).await;
    assert_eq!(by_socket.info().address, format!("mysql://{}/locks", path.display()));
    excludes(&by_socket, &by_host, "n").await;
    excludes(&by_host, &by_socket, "n").await;
    let missing = config("mysql://beside:pw@/locks?socket=/nowhere/mysqld.sock");
    assert_eq!(MySqlBackend::connect(missing).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// The locks of a pool go where it leads, and not over its connections: the pool may be exhausted.
#[tokio::test]
async fn a_pool_of_the_applications_is_connected_as() {
    let server = MariaDb::start(&[]).await.unwrap();
    server.run("CREATE USER theirs@'127.0.0.1' IDENTIFIED BY 'before'").await.unwrap();
    server.run("GRANT ALL ON *.* TO theirs@'127.0.0.1'").await.unwrap();
    let by_url = connect(&server.url()).await;
    let options = |password: &str| {
        let options = MySqlConnectOptions::new().host("127.0.0.1").port(server.port()).username("theirs");
        options.password(password).database("locks")
    };
    let pool = MySqlPoolOptions::new().max_connections(1).connect_with(options("before")).await.unwrap();
    let _taken = pool.acquire().await.unwrap();
    let own = MySqlConfig::of_pool(pool.clone());
    assert!(!format!("{own:?}").contains("before"), "{own:?}");
    let by_pool = MySqlBackend::connect(own.clone()).await.unwrap();
    assert_eq!(by_pool.info().address, format!("mysql://127.0.0.1:{}/locks", server.port()));
    excludes(&by_url, &by_pool, "n").await;
    excludes(&by_pool, &by_url, "n").await;

    // The pool learns of a new password, and with it the locks.
    let kept = exclusive("kept");
    held(&by_pool, &kept).await;
    server.run("ALTER USER theirs@'127.0.0.1' IDENTIFIED BY 'after'").await.unwrap();
    cut(&server, "theirs").await;
    renewed(&by_pool, &kept, |answer| answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Denied)).await;
    pool.set_connect_options(options("after"));
    renewed(&by_pool, &kept, |answer| matches!(answer, Ok(Renewed::Held(_)))).await;

    let mut named = own;
    named.username = "me".to_owned();
    assert_eq!(MySqlBackend::connect(named).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// Verbs are prepared once per connection of ours, whatever the connections of the pool keep.
#[tokio::test]
async fn a_pool_without_prepared_statements_costs_no_round_trip() {
    let (server, link) = (MariaDb::start(&[]).await.unwrap(), Link::new());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into(), &link).await.unwrap();
    let options = server.url().parse::<MySqlConnectOptions>().unwrap().port(proxy.address().port());
    let pool = MySqlPoolOptions::new().connect_lazy_with(options.statement_cache_capacity(0));
    let store = MySqlBackend::connect(MySqlConfig::of_pool(pool)).await.unwrap();
    let cycle = async || {
        let request = exclusive("cycle");
        held(&store, &request).await;
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
    let server = MariaDb::start(&[]).await.unwrap();
    server.run("CREATE USER theirs@'127.0.0.1' IDENTIFIED BY 'before'").await.unwrap();
    server.run("GRANT ALL ON *.* TO theirs@'127.0.0.1'").await.unwrap();
    let secret = Arc::new(Mutex::new("before".to_owned()));
    let source = Arc::clone(&secret);
    let mut own = config(&format!("mysql://x@127.0.0.1:{}/locks", server.port()));
    own.username.clear();
    own.credentials = Some(Credentials::new(move || {
        let password = source.lock().unwrap().clone();
        async move {
            match &*password {
                "" => Err(std::io::Error::other("the vault is sealed")),
                password => Ok(("theirs".to_owned(), Secret::new(password))),
            }
        }
    }));
    let store = MySqlBackend::connect(own.clone()).await.unwrap();
    let kept = exclusive("kept");
    held(&store, &kept).await;
    server.run("ALTER USER theirs@'127.0.0.1' IDENTIFIED BY 'after'").await.unwrap();
    secret.lock().unwrap().clear();
    cut(&server, "theirs").await;
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
    own.username = "me".to_owned();
    assert_eq!(MySqlBackend::connect(own).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// The one that takes writes is used, wherever it stands in the list; when both do, none is.
#[tokio::test]
async fn the_one_of_several_hosts_that_takes_writes_is_used() {
    let (one, two) = (MariaDb::start(&[]).await.unwrap(), MariaDb::start(&[]).await.unwrap());
    let url = format!("mysql://root@127.0.0.1:{},127.0.0.1:{}/locks", one.port(), two.port());
    let error = MySqlBackend::connect(config(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("both take writes"), "{error}");

    one.run("SET GLOBAL read_only = ON").await.unwrap();
    let (by_hosts, by_url) = (connect(&url).await, connect(&two.url()).await);
    excludes(&by_hosts, &by_url, "n").await;
    // Another one takes writes from now on: what the first knew of is not there.
    let kept = exclusive("kept");
    held(&by_hosts, &kept).await;
    two.run("SET GLOBAL read_only = ON").await.unwrap();
    cut(&two, "root").await;
    renewed(&by_hosts, &kept, |answer| {
        answer.as_ref().is_err_and(|e| e.to_string().contains("no primary") && e.is_retryable())
    })
    .await;
    two.run("SET GLOBAL read_only = OFF").await.unwrap();
    renewed(&by_hosts, &kept, |answer| matches!(answer, Ok(Renewed::Held(_)))).await;
}
