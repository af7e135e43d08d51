//! Connections that end after any byte of what the server says, and servers that answer no verb for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};
use std::time::Duration;

use crate::common::{Server, held, renew_one, request, soon, told, waits};
use onelock_core::{Backend, Error, ErrorKind, Page, Raise, Release, Renewed, Wake};
use onelock_redis::{RedisBackend, RedisConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ENDLESS: i64 = i64::MAX;

/// A way to a server that ends after so many more bytes of it; the next one is whole again, and leads to where it leads then.
async fn way(server: &Server) -> (u16, Arc<AtomicI64>, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (left, target) = (Arc::new(AtomicI64::new(ENDLESS)), Arc::new(AtomicU16::new(server.port)));
    let (shared, leads) = (Arc::clone(&left), Arc::clone(&target));
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let (left, target) = (Arc::clone(&shared), leads.load(Ordering::SeqCst));
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                let (mut asked, mut said) = ([0; 16 << 10], [0; 16 << 10]);
                loop {
                    tokio::select! {
                        n = client.read(&mut asked) => match n {
                            Ok(n) if n > 0 => if server.write_all(&asked[..n]).await.is_err() { return },
                            _ => return,
                        },
                        n = server.read(&mut said) => {
                            let Ok(n @ 1..) = n else { return };
                            let most = left.load(Ordering::SeqCst);
                            let part = n.min(usize::try_from(most).unwrap_or(usize::MAX));
                            let _ = client.write_all(&said[..part]).await;
                            if part < n {
                                left.store(ENDLESS, Ordering::SeqCst);
                                return;
                            }
                            if most != ENDLESS {
                                left.store(most - part as i64, Ordering::SeqCst);
                            }
                        }
                    }
                }
            });
        }
    });
    (port, left, target)
}

#[tokio::test]
async fn a_connection_may_end_after_any_byte_of_any_answer() {
    let server = Server::start(&[]).await;
    let (port, left, _) = way(&server).await;
    let (other, mut raw) = (server.backend().await, server.raw().await);
    let checked = |what: &str, k: i64, error: &Error| {
        assert!(error.is_retryable(), "{what} after {k} bytes: {error}");
    };
    for what in ["join", "busy", "wait", "notify", "renew", "release", "raise", "inspect", "list", "evict"] {
        let mut cuts = 0;
        // Every byte of its first words, and then some.
        for k in (0..12).chain((12..).step_by(7)) {
            // A client of its own: one whose connections end soon waits before the next.
            let backend = RedisBackend::connect(RedisConfig::new("127.0.0.1", port)).await.unwrap();
            let given_back = async |ask: &onelock_core::Request| {
                soon(async { while backend.release(&ask.ticket()).await.is_err() {} }).await;
            };
            let lock = format!("{what}-{k}");
            let [first, mine] = [request(&lock, "x"), request(&lock, "x")];
            if ["busy", "wait", "notify", "inspect", "list", "evict"].contains(&what) {
                held(other.acquire(&first).await.unwrap());
            } else if what != "join" {
                held(backend.acquire(&mine).await.unwrap());
            }
            if what == "notify" {
                waits(backend.acquire(&mine).await.unwrap());
            }
            left.store(k, Ordering::SeqCst);
            match what {
                "join" | "wait" | "busy" => {
                    let mine = mine.clone().queue(what != "busy");
                    let joined = backend.acquire(&mine).await;
                    if let Err(error) = &joined {
                        checked(what, k, error);
                        assert!(error.is_unclear(), "{what} after {k} bytes: {error}");
                    }
                    given_back(&mine).await;
                }
                "notify" => {
                    assert_eq!(other.release(&first.ticket()).await.unwrap(), Release::Released);
                    soon(async {
                        loop {
                            match backend.wait(&mine.ticket()).await {
                                Ok(Wake::Held(_)) => break,
                                Ok(Wake::Ask) => match renew_one(&backend, &mine.ticket()).await {
                                    Ok(Renewed::Held(_)) => break,
                                    Ok(other) => panic!("{what} after {k} bytes: {other:?}"),
                                    Err(error) => checked(what, k, &error),
                                },
                                Err(error) => checked(what, k, &error),
                            }
                        }
                    })
                    .await;
                    given_back(&mine).await;
                }
                "renew" => {
                    match renew_one(&backend, &mine.ticket()).await {
                        Ok(Renewed::Held(_)) => {}
                        Ok(other) => panic!("{what} after {k} bytes: {other:?}"),
                        Err(error) => checked(what, k, &error),
                    }
                    assert!(matches!(renew_one(&*other, &mine.ticket()).await, Ok(Renewed::Held(_))));
                    given_back(&mine).await;
                }
                "release" => match backend.release(&mine.ticket()).await {
                    Ok(answer) => assert_eq!(answer, Release::Released),
                    Err(error) => checked(what, k, &error),
                },
                "raise" => {
                    let token = onelock_core::FencingToken::new((1 << 50) + k).unwrap();
                    match backend.raise(&mine.ticket(), token).await {
                        Ok(answer) => assert_eq!(answer, Raise::Raised),
                        Err(error) => checked(what, k, &error),
                    }
                    given_back(&mine).await;
                }
                "inspect" => match backend.inspect(&first.name).await {
                    Ok(seen) => assert_eq!(seen.holders.len(), 1),
                    Err(error) => checked(what, k, &error),
                },
                "list" => match backend.list("", &Page::first(100).unwrap()).await {
                    Ok(seen) => assert_eq!(seen.names.len(), 1),
                    Err(error) => checked(what, k, &error),
                },
                _ => {
                    let token = other.inspect(&first.name).await.unwrap().holders[0].token;
                    match backend.evict(&first.name, token).await {
                        Ok(answer) => assert_eq!(answer, Release::Released),
                        Err(error) => checked(what, k, &error),
                    }
                }
            }
            let _ = other.release(&first.ticket()).await.unwrap();
            assert_eq!(raw.residue().await, Vec::<String>::new(), "{what} after {k} bytes");
            if left.swap(ENDLESS, Ordering::SeqCst) != ENDLESS {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 3, "{what}: {cuts} cuts");
    }
}

/// What a new connection is told may be cut short, too.
#[tokio::test]
async fn a_connection_may_end_after_any_byte_of_its_beginning() {
    let server = Server::start(&[]).await;
    let (port, left, _) = way(&server).await;
    let mut config = RedisConfig::new("127.0.0.1", port);
    config.connect_timeout = Duration::from_secs(10);
    let mut cuts = 0;
    for k in (0..12).chain((12..).step_by(13)) {
        left.store(k, Ordering::SeqCst);
        if let Err(error) = soon(RedisBackend::connect(config.clone())).await {
            assert!(error.is_retryable(), "after {k} bytes: {error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "after {k} bytes: {error}");
        }
        if left.swap(ENDLESS, Ordering::SeqCst) != ENDLESS {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 30, "{cuts}");
}

/// A script of somebody else that runs long, and a server that loads its data: no verb is done meanwhile, and nothing is lost by it.
#[tokio::test]
async fn a_server_that_does_nothing_for_a_while_costs_no_lock() {
    let server = Server::start(&["--enable-debug-command", "yes", "--busy-reply-threshold", "1"]).await;
    for said in ["BUSY", "LOADING"] {
        let (backend, mut raw, mut also) = (server.backend().await, server.raw().await, server.raw().await);
        let [first, second, third] = ["x"; 3].map(|mode| request(said, mode));
        let token = held(backend.acquire(&first).await.unwrap()).token;
        waits(backend.acquire(&second).await.unwrap());
        let long = if said == "BUSY" {
            tokio::spawn(async move {
                let mut command = redis::cmd("EVAL");
                command.arg("while true do end").arg(0);
                let _ = also.0.send_packed_command(&command).await;
            })
        } else {
            let fill = "for i = 1, 20000 do redis.call('SET', 'fill:' .. i, i, 'PX', 600000) end";
            raw.run_args(&["EVAL", fill, "0"]).await;
            raw.run("CONFIG SET key-load-delay 100").await;
            raw.run("CONFIG SET loading-process-events-interval-bytes 1024").await;
            tokio::spawn(async move {
                let _ = also.0.send_packed_command(redis::cmd("DEBUG").arg("RELOAD")).await;
            })
        };
        let refused = |what: &str, error: Error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            error.to_string().contains(said)
        };
        soon(async { while backend.inspect(&first.name).await.is_ok() {} }).await;
        let mut seen = 0;
        for what in ["acquire", "renew", "release", "raise", "inspect", "list", "evict", "connect"] {
            let result = match what {
                "acquire" => backend.acquire(&third).await.map(drop),
                "renew" => renew_one(&*backend, &first.ticket()).await.map(drop),
                "release" => backend.release(&third.ticket()).await.map(drop),
                "raise" => backend.raise(&first.ticket(), token).await.map(drop),
                "inspect" => backend.inspect(&first.name).await.map(drop),
                "list" => backend.list("", &Page::first(100).unwrap()).await.map(drop),
                "evict" => backend.evict(&first.name, crate::common::token(7)).await.map(drop),
                _ => soon(RedisBackend::connect(server.config())).await.map(drop),
            };
            if let Err(error) = result {
                seen += i32::from(refused(what, error));
            }
        }
        assert!(seen > 4, "{seen} were refused");
        if said == "BUSY" {
            raw.run("SCRIPT KILL").await;
        }
        soon(long).await.unwrap();
        soon(async { while backend.inspect(&first.name).await.is_err() {} }).await;
        let renewed = renew_one(&*backend, &first.ticket()).await;
        assert!(matches!(&renewed, Ok(Renewed::Held(grant)) if grant.token == token), "{renewed:?}");
        soon(async { while backend.release(&third.ticket()).await.is_err() {} }).await;
        assert_eq!(backend.release(&first.ticket()).await.unwrap(), Release::Released);
        if told(&*backend, &second.ticket()).await == Wake::Ask {
            assert!(matches!(renew_one(&*backend, &second.ticket()).await, Ok(Renewed::Held(_))));
        }
        backend.release(&second.ticket()).await.unwrap();
    }
}

/// A master that was made a replica loads what the new one has, and answers nothing else for as long: its name may lead there by now.
#[tokio::test]
async fn who_meets_a_server_that_loads_asks_where_the_name_leads() {
    let (old, new) = (Server::start(&[]).await, Server::start(&["--repl-diskless-sync-delay", "0"]).await);
    let (mut raw, mut other) = (old.raw().await, new.raw().await);
    let fill = "for i = 1, 20000 do redis.call('SET', 'fill:' .. i, i) end";
    other.run_args(&["EVAL", fill, "0"]).await;
    for set in ["key-load-delay 5000", "loading-process-events-interval-bytes 1024"] {
        raw.run(&format!("CONFIG SET {set}")).await;
    }
    let (port, _, target) = way(&old).await;
    let backend = RedisBackend::connect(RedisConfig::new("127.0.0.1", port)).await.unwrap();
    raw.run(&format!("REPLICAOF 127.0.0.1 {}", new.port)).await;
    let mut loads = async || {
        let info: String = redis::from_redis_value(raw.run("INFO persistence").await).unwrap();
        info.contains("\nloading:1")
    };
    soon(async { while !loads().await {} }).await;
    target.store(new.port, Ordering::SeqCst);
    let ask = request("a", "x");
    soon(async { while backend.acquire(&ask).await.is_err() {} }).await;
    assert!(loads().await, "it has loaded all");
    assert_eq!(other.residue().await.iter().filter(|key| !key.starts_with("fill")).count(), 1);
}
