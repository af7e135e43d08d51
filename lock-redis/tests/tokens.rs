//! Where the numbers of a server start, and where they are no fencing tokens.

use std::sync::Arc;

use crate::common::{Server, held, request, soon};
use onelock_core::{Backend, BootClock, ErrorKind, FencingToken, Locks, StoreUrl};
use onelock_redis::{RedisBackend, RedisConfig};

const LAYOUTS: [&str; 2] = ["line", "plain"];

async fn backend(server: &Server, options: &str) -> Arc<dyn Backend> {
    let url: StoreUrl = format!("redis://127.0.0.1:{}/?{options}", server.port).parse().unwrap();
    let config = RedisConfig::try_from(url).unwrap();
    Arc::new(RedisBackend::connect(config).await.unwrap())
}

/// The token of a lock that is taken and released.
async fn token(backend: &dyn Backend) -> i64 {
    let ask = request("a", "x");
    let token = held(soon(backend.acquire(&ask)).await.unwrap()).token.get();
    backend.release(&ask.ticket()).await.unwrap();
    token
}

#[tokio::test]
async fn tokens_grow_over_a_server_that_has_lost_everything() {
    for layout in LAYOUTS {
        // It keeps nothing over a restart.
        let mut server = Server::start(&[]).await;
        let backend = backend(&server, &format!("layout={layout}")).await;
        let mut last = 0;
        for lost in ["nothing", "nothing", "all", "nothing", "the server"] {
            match lost {
                "all" => drop(server.raw().await.run("FLUSHALL").await),
                "the server" => server.restart().await,
                _ => {}
            }
            let next = soon(async {
                loop {
                    // The connection of a dead server fails once.
                    let ask = request("a", "x");
                    if let Ok(standing) = backend.acquire(&ask).await {
                        backend.release(&ask.ticket()).await.unwrap();
                        break held(standing).token.get();
                    }
                }
            })
            .await;
            assert!(next > last, "{layout}: {next} after {last}, with {lost} lost");
            last = next;
        }
        // Below the bits of a token epoch.
        assert!(last < 1 << 48, "{layout}: {last}");
    }
}

/// An empty server's first join, of a user who loses a right in it, leaves no counter that starts too low.
#[tokio::test]
async fn a_first_number_that_is_refused_turns_no_counter_back() {
    for layout in LAYOUTS {
        let server = Server::start(&[]).await;
        let (backend, mut raw) = (backend(&server, &format!("layout={layout}")).await, server.raw().await);
        let last = token(&*backend).await;
        raw.run("FLUSHALL").await;
        raw.run("ACL SETUSER default -set").await;
        for _ in 0..2 {
            assert_eq!(backend.acquire(&request("a", "x")).await.unwrap_err().kind(), ErrorKind::Denied);
        }
        raw.run("ACL SETUSER default +set").await;
        let next = token(&*backend).await;
        assert!(next > last, "{layout}: {next} after {last}");
    }
}

#[tokio::test]
async fn a_server_with_replicas_is_fenced_only_where_somebody_says_so() {
    let master = Server::start(&[]).await;
    let mut raw = master.raw().await;
    for layout in LAYOUTS {
        assert!(backend(&master, &format!("layout={layout}")).await.capabilities().fencing, "{layout}");
    }
    let port = master.port.to_string();
    let _replica =
        Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await;
    soon(async { while raw.int("WAIT 1 100").await == 0 {} }).await;
    for layout in LAYOUTS {
        let plain = backend(&master, &format!("layout={layout}")).await;
        let declared = plain.capabilities();
        assert!(!declared.fencing && !declared.raise, "{layout}");
        let locks = Locks::builder(plain).clock(Arc::new(BootClock)).build().unwrap();
        let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
        let error = guard.token().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("as its servers are set up"), "{error}");
        guard.release().await.unwrap();
        for said in ["replicas=1&replicas_timeout=8s&request_timeout=10s", "never_promoted=true"] {
            let said = backend(&master, &format!("layout={layout}&{said}")).await;
            assert!(said.capabilities().fencing, "{layout}");
            assert!(token(&*said).await > 0);
        }
    }
}

/// Not to know of replicas is not to know that there are none.
#[tokio::test]
async fn who_may_not_ask_for_replicas_has_no_fencing() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    raw.run("ACL SETUSER default -info").await;
    for layout in LAYOUTS {
        let declared = backend(&server, &format!("layout={layout}")).await.capabilities();
        assert!(!declared.fencing && !declared.raise, "{layout}");
        let said = backend(&server, &format!("layout={layout}&never_promoted=true")).await.capabilities();
        assert!(said.fencing, "{layout}");
    }
}

/// What replicas do not have is lost with their master: also where somebody else's raise, which they lack, has lifted it so far.
#[tokio::test]
async fn a_raise_counts_only_where_replicas_have_it() {
    let master = Server::start(&[]).await;
    let (mut raw, port) = (master.raw().await, master.port.to_string());
    let replica =
        Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await;
    soon(async { while raw.int("WAIT 1 100").await == 0 {} }).await;
    let backend = backend(&master, "replicas=1&replicas_timeout=1s").await;
    let ask = request("a", "x");
    soon(async { while backend.acquire(&ask).await.is_err() {} }).await;
    replica.signal("-STOP");
    let least = FencingToken::new(1 << 50).unwrap();
    for what in ["lifts it", "lifts nothing"] {
        // What is asked on a new connection waits for nothing that was written on another.
        raw.run("CLIENT KILL TYPE pubsub").await;
        let raised = soon(async {
            loop {
                match backend.raise(&ask.ticket(), least).await {
                    Err(error) if !error.to_string().contains("replicas") => {}
                    answer => break answer,
                }
            }
        })
        .await;
        assert_eq!(raised.expect_err(what).kind(), ErrorKind::Unavailable, "{what}");
    }
    replica.signal("-CONT");
    soon(async { while backend.raise(&ask.ticket(), least).await.is_err() {} }).await;
}
