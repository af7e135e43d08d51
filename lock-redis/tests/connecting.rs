//! The ways to a server that are not a host and a port: a Unix socket, a client of the application's, a callback for
//! credentials.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use onelock_core::driver::Context;
use onelock_core::{Backend, BootClock, Credentials, ErrorKind, Release, Renewed, Secret, Wake};
use onelock_redis::{RedisBackend, RedisConfig, Topology};

use crate::common::{PATIENCE, Server, held, renew_one, request, soon, waits};

async fn open(url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
    onelock_redis::DRIVER.open(url.parse()?, Context::new(Arc::new(BootClock))).await
}

/// A waiter of `there` is handed the lock that `here` has: both are at the same keys, and notifications come through.
async fn excludes(here: &dyn Backend, there: &dyn Backend, on: &str) {
    let (first, second) = (request(on, "x"), request(on, "x"));
    held(here.acquire(&first).await.unwrap());
    waits(there.acquire(&second).await.unwrap());
    assert_eq!(here.release(&first.ticket()).await.unwrap(), Release::Released);
    assert!(matches!(soon(there.wait(&second.ticket())).await.unwrap(), Wake::Held(_)));
    assert_eq!(there.release(&second.ticket()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_unix_socket_leads_to_the_same_locks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let path = path.to_str().unwrap();
    let server = Server::start(&["--unixsocket", path, "--requirepass", "hunter2"]).await;
    let by_socket = open(&format!("redis+unix://:hunter2@{path}?db=3")).await.unwrap();
    let by_host = open(&format!("redis://:hunter2@127.0.0.1:{}/3", server.port)).await.unwrap();
    assert_eq!(by_socket.info().address, format!("redis+unix://{path}"));
    excludes(&*by_socket, &*by_host, "one").await;
    excludes(&*by_host, &*by_socket, "two").await;
    for (url, kind) in [
        (format!("redis+unix://{path}"), ErrorKind::Denied),
        (format!("redis+unix://{path}.none"), ErrorKind::Unavailable),
        ("redis+unix://h/run/redis.sock".to_owned(), ErrorKind::InvalidConfig),
        ("redis+unix://".to_owned(), ErrorKind::InvalidConfig),
        (format!("redis+unix://{path}?db=x"), ErrorKind::InvalidConfig),
        (format!("redis+unix://{path}?tls_ca=/ca.pem"), ErrorKind::InvalidConfig),
        (format!("redis://:hunter2@127.0.0.1:{}/3?db=3", server.port), ErrorKind::InvalidConfig),
    ] {
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_client_of_the_applications_is_connected_as() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let server = Server::start(&["--unixsocket", path.to_str().unwrap(), "--requirepass", "hunter2"]).await;
    let by_url = open(&format!("redis://:hunter2@127.0.0.1:{}/3", server.port)).await.unwrap();
    for address in [
        format!("redis://:hunter2@127.0.0.1:{}/3", server.port),
        format!("redis+unix://{}?db=3&pass=hunter2", path.display()),
    ] {
        let client = redis::Client::open(address.as_str()).unwrap();
        let config = RedisConfig::of_client(client);
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
        let by_client = RedisBackend::connect(config.clone()).await.unwrap();
        excludes(&*by_url, &by_client, "n").await;
        excludes(&by_client, &*by_url, "n").await;
        // It connects anew by itself.
        let kept = request("kept", "x");
        held(by_client.acquire(&kept).await.unwrap());
        let mut admin = server.raw().await;
        admin.run("AUTH hunter2").await;
        admin.run("CLIENT KILL TYPE pubsub SKIPME yes").await;
        let end = tokio::time::Instant::now() + PATIENCE;
        while !matches!(renew_one(&by_client, &kept.ticket()).await, Ok(Renewed::Held(_))) {
            assert!(tokio::time::Instant::now() < end, "it does not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        by_client.release(&kept.ticket()).await.unwrap();
        let mut many = config.clone();
        many.topology = Topology::Cluster;
        many.database = 0;
        assert_eq!(RedisBackend::connect(many).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        let mut named = config;
        named.password = Some(Secret::new("hunter3"));
        assert_eq!(RedisBackend::connect(named).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

/// The password is changed while a lock is held: the next connection asks for the new one, and nothing is lost.
#[tokio::test]
async fn each_connection_asks_for_its_credentials() {
    let server = Server::start(&["--requirepass", "before"]).await;
    let secret = Arc::new(Mutex::new("before".to_owned()));
    let mut config = server.config();
    let source = Arc::clone(&secret);
    config.credentials = Some(Credentials::new(move || {
        let password = source.lock().unwrap().clone();
        async move {
            match &*password {
                "" => Err(std::io::Error::other("the vault is sealed")),
                password => Ok((String::new(), Secret::new(password))),
            }
        }
    }));
    let backend = RedisBackend::connect(config.clone()).await.unwrap();
    let kept = request("kept", "x");
    held(backend.acquire(&kept).await.unwrap());

    let mut admin = server.raw().await;
    admin.run("AUTH before").await;
    admin.run("CONFIG SET requirepass after").await;
    admin.run("AUTH after").await;
    let cut = async |admin: &mut crate::common::Raw| {
        admin.run("CLIENT KILL TYPE pubsub SKIPME yes").await;
    };
    cut(&mut admin).await;
    let until = async |wanted: &str| {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = renew_one(&backend, &kept.ticket()).await;
            let said = format!("{answer:?}");
            assert!(!said.contains("before") && !said.contains("after"), "{said}");
            if said.contains(wanted) {
                return answer;
            }
            assert!(tokio::time::Instant::now() < end, "no {wanted}: {said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The old one is refused; a callback that fails says so.
    assert_eq!(until("access denied").await.unwrap_err().kind(), ErrorKind::Denied);
    secret.lock().unwrap().clear();
    let error = until("the vault is sealed").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Unavailable, false), "{error}");
    "after".clone_into(&mut secret.lock().unwrap());
    assert!(matches!(until("Held").await, Ok(Renewed::Held(_))));

    config.username = Some("me".to_owned());
    assert_eq!(RedisBackend::connect(config).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// A callback that hangs costs its caller the time for connecting, and says who hangs.
#[tokio::test(start_paused = true)]
async fn a_callback_that_hangs_is_named() {
    let mut config = RedisConfig::new("127.0.0.1", 1);
    config.credentials = Some(Credentials::new(std::future::pending::<Result<_, std::io::Error>>));
    let error = RedisBackend::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("callback for credentials did not answer"), "{error}");
}
