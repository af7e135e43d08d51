//! What a server must be, and which settings of it are checked: version, rights, passwords, memory.

use onelock_conformance::servers::redis::{RedisServer, Setup};

use crate::common::{Server, held, renew_one, request, soon, token, waits};
use onelock_core::driver::Context;
use onelock_core::{
    Backend, BootClock, ErrorKind, Locks, Page, Raise, Release, Renewed, Settings, StoreUrl, Wake,
};
use onelock_redis::{Layout, RedisBackend, RedisConfig, Topology};

/// A server that lacks a command of 7.0, as older ones do.
#[tokio::test]
async fn an_old_server_is_refused() {
    let server = Server::start(&["--rename-command", "PEXPIRETIME", ""]).await;
    let line = RedisBackend::connect(server.config()).await.map(drop);
    let mut config = server.config();
    (config.layout, config.namespace) = (Layout::Plain, String::new());
    let plain = RedisBackend::connect(config).await.map(drop);
    for refused in [line, plain] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("Redis 7.0"), "{error}");
    }
}

/// Two locks of two slots could be taken there, and no script could renew both.
#[tokio::test]
async fn a_node_of_a_cluster_is_no_single_server() {
    let bus = onelock_conformance::servers::free_port().unwrap().to_string();
    let server = Server::start(&["--cluster-enabled", "yes", "--cluster-port", &bus]).await;
    let mut raw = server.raw().await;
    raw.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
    soon(async { while !format!("{:?}", raw.run("CLUSTER INFO").await).contains("cluster_state:ok") {} })
        .await;
    for layout in [Layout::Line, Layout::Plain] {
        let mut config = server.config();
        config.layout = layout;
        let error = RedisBackend::connect(config).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("redis+cluster://"), "{error}");
    }
    let mut numbered = server.config();
    numbered.database = 1;
    let error = RedisBackend::connect(numbered).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let alone = Server::start(&[]).await;
    let mut config = alone.config();
    config.topology = Topology::Cluster;
    let error = RedisBackend::connect(config).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

/// Their ports are easily mixed up.
#[tokio::test]
async fn a_sentinel_and_a_server_are_told_apart() {
    let sentinel = RedisServer::start(Setup { sentinel: true, ..Setup::default() }).await.unwrap();
    let at = RedisConfig::new("127.0.0.1", sentinel.address().port());
    let error = RedisBackend::connect(at).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("is it a sentinel?"), "{error}");
    let server = Server::start(&[]).await;
    let mut at = server.config();
    at.topology = Topology::Sentinel { master: "main".into() };
    let error = RedisBackend::connect(at).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("no sentinel"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_told() {
    let server = Server::start(&[]).await;
    let url = format!("rediss://127.0.0.1:{}?connect_timeout=500ms", server.port);
    let opened =
        Locks::open(&url, &[onelock_redis::DRIVER], Settings::default(), std::sync::Arc::new(BootClock))
            .await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("looks like Redis without TLS"), "{error}");
}

#[tokio::test]
async fn a_full_server_keeps_and_frees_locks_but_makes_none() {
    let server = Server::start(&[]).await;
    let (backend, mut raw) = (server.backend().await, server.raw().await);
    let (ask, next) = (request("a", "x"), request("a", "x"));
    held(backend.acquire(&ask).await.unwrap());
    waits(backend.acquire(&next).await.unwrap());
    raw.run("CONFIG SET maxmemory 1").await;
    let error = backend.acquire(&request("b", "x")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Full, false), "{error}");
    assert_eq!(raw.residue().await.len(), 4);
    for _ in 0..3 {
        assert!(matches!(renew_one(&*backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
        assert!(matches!(renew_one(&*backend, &next.ticket()).await, Ok(Renewed::Waiting(_))));
    }
    assert_eq!(backend.release(&ask.ticket()).await.unwrap(), Release::Released);
    assert!(matches!(soon(backend.wait(&next.ticket())).await.unwrap(), Wake::Held(_)));
    assert_eq!(backend.release(&next.ticket()).await.unwrap(), Release::Released);
    assert_eq!(raw.residue().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_refused() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let error = RedisBackend::connect(server.config()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let mut allowed = server.config();
    allowed.allow_eviction = true;
    let backend = RedisBackend::connect(allowed.clone()).await.unwrap();
    assert!(!backend.capabilities().fencing && !backend.capabilities().raise);
    server.raw().await.run("CONFIG SET maxmemory-policy volatile-lru").await;
    assert_eq!(RedisBackend::connect(server.config()).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(RedisBackend::connect(allowed).await.unwrap().capabilities().fencing);
}

/// The line of the documentation.
fn documented_rights() -> String {
    let readme = include_str!("../README.md");
    let rights = readme.lines().find_map(|l| l.strip_prefix("ACL SETUSER locker ")).unwrap();
    // A password that nothing else is called.
    rights.replace(">secret", ">lockers-never-printed")
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_each_is_needed() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    let rights = documented_rights();
    let url: StoreUrl =
        format!("redis://locker:lockers-never-printed@127.0.0.1:{}", server.port).parse().unwrap();
    let config = RedisConfig::try_from(url).unwrap();
    raw.run(&format!("ACL SETUSER locker {rights}")).await;
    let backend = RedisBackend::connect(config.clone()).await.unwrap();
    let (ask, next) = (request("a", "x"), request("a", "x"));
    let grant = held(backend.acquire(&ask).await.unwrap());
    waits(backend.acquire(&next).await.unwrap());
    assert!(matches!(renew_one(&backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
    let raised = token(grant.token.get() + 9);
    assert_eq!(backend.raise(&ask.ticket(), raised).await.unwrap(), Raise::Raised);
    assert_eq!(backend.list("", &Page::first(9).unwrap()).await.unwrap().names.len(), 1);
    assert_eq!(backend.inspect(&ask.name).await.unwrap().waiters.len(), 1);
    assert_eq!(backend.evict(&ask.name, grant.token).await.unwrap(), Release::Released);
    assert!(matches!(soon(backend.wait(&next.ticket())).await.unwrap(), Wake::Held(_)));
    backend.close().await.unwrap();
    assert_eq!(raw.residue().await.len(), 2);

    let optional = ["+info", "+scan", "+ping"];
    for right in rights.split(' ').filter(|r| r.starts_with(['+', '~', '&']) && !optional.contains(r)) {
        let less: Vec<_> = rights.split(' ').filter(|r| *r != right).collect();
        raw.run("ACL DELUSER locker").await;
        raw.run(&format!("ACL SETUSER locker {}", less.join(" "))).await;
        let error = RedisBackend::connect(config.clone()).await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "without {right}: {error}");
        assert!(!format!("{error} {error:?}").contains("lockers-never-printed"));
        if let Some(command) =
            right.strip_prefix('+').filter(|c| !c.contains('|') && !c.starts_with("evalsha"))
        {
            assert!(error.to_string().contains(command), "without {right}: {error}");
        }
    }
}

#[tokio::test]
async fn passwords_users_and_databases_are_used_and_checked() {
    let server = Server::start(&["--requirepass", "hunter2"]).await;
    let open = async |url: String| {
        let url: StoreUrl = url.parse().unwrap();
        onelock_redis::DRIVER.open(url, Context::new(std::sync::Arc::new(onelock_core::BootClock))).await
    };
    let at = |rest: &str| rest.replace("HOST", &format!("127.0.0.1:{}", server.port));
    let backend = open(at("redis://:hunter2@HOST/3")).await.unwrap();
    held(backend.acquire(&request("a", "x")).await.unwrap());
    assert!(!format!("{backend:?} {:?}", backend.info()).contains("hunter2"));
    assert_eq!(backend.info().address, at("redis://HOST/3"));
    let elsewhere = open(at("redis://default:hunter2@HOST/2")).await.unwrap();
    held(elsewhere.acquire(&request("a", "x")).await.unwrap());
    for (url, kind) in [
        ("redis://HOST", ErrorKind::Denied),
        ("redis://:hunter3@HOST", ErrorKind::Denied),
        ("redis://nobody:hunter2@HOST", ErrorKind::Denied),
        ("redis://:hunter2@HOST/99", ErrorKind::InvalidConfig),
    ] {
        let error = open(at(url)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    }
}

/// It repeats what it does not know, and the password is a part of that.
#[tokio::test]
async fn a_server_without_hello_is_refused_and_no_password_shown() {
    let server = Server::start(&["--requirepass", "hunter2", "--rename-command", "HELLO", ""]).await;
    let url: StoreUrl = format!("redis://:hunter2@127.0.0.1:{}", server.port).parse().unwrap();
    let error = RedisBackend::connect(RedisConfig::try_from(url).unwrap()).await.map(drop).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
