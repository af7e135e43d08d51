//! The limits of the server: connections, the size of an answer, the size of a request.

use std::time::Duration;

use crate::common::{HOUR, Server, held, renew_one, request, soon, told, waits};
use onelock_core::{Backend, ErrorKind, Note, Release, Renewal, Renewed, Wake};
use onelock_redis::RedisBackend;

#[tokio::test]
async fn a_server_without_room_for_a_connection_is_unavailable() {
    // One for the holder, one for this test.
    let server = Server::start(&["--maxclients", "2"]).await;
    let holder = server.backend().await;
    let ask = request("a", "x");
    held(holder.acquire(&ask).await.unwrap());
    let raw = server.raw().await;
    for _ in 0..3 {
        let error = soon(RedisBackend::connect(server.config())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    }
    assert!(matches!(renew_one(&*holder, &ask.ticket()).await, Ok(Renewed::Held(_))));
    drop(raw);
    soon(async { while RedisBackend::connect(server.config()).await.is_err() {} }).await;
}

/// The answer to a look at a long line is more than the server keeps for a client, so it ends the connection: that costs the
/// client nothing but this answer.
#[tokio::test]
async fn an_answer_that_is_too_long_costs_only_itself() {
    let server = Server::start(&["--client-output-buffer-limit", "pubsub", "24kb", "0", "0"]).await;
    let backend = server.backend().await;
    let first = request("a", "x");
    held(backend.acquire(&first).await.unwrap());
    let next = request("a", "x");
    waits(backend.acquire(&next).await.unwrap());
    for _ in 0..1500 {
        let note = Note::new("n".repeat(64)).unwrap();
        waits(backend.acquire(&request("a", "x").note(note)).await.unwrap());
    }
    let error = soon(backend.inspect(&first.name)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    soon(async { while renew_one(&*backend, &first.ticket()).await.is_err() {} }).await;
    // What was pushed meanwhile may be lost: each waiter asks.
    assert_eq!(told(&*backend, &next.ticket()).await, Wake::Ask);
    assert!(matches!(renew_one(&*backend, &next.ticket()).await, Ok(Renewed::Waiting(_))));
    assert_eq!(backend.release(&first.ticket()).await.unwrap(), Release::Released);
    assert!(matches!(soon(backend.wait(&next.ticket())).await.unwrap(), Wake::Held(_)));
}

/// The smallest limits that a server takes, and the largest requests of ours: many locks with the longest names, at once.
#[tokio::test]
async fn no_request_is_too_large() {
    let server = Server::start(&["--proto-max-bulk-len", "1mb", "--client-query-buffer-limit", "1mb"]).await;
    let backend = server.backend().await;
    let mut due = Vec::new();
    for i in 0..2000 {
        // Each of these bytes takes three in a key.
        let text = format!("{i:04}{}", "%".repeat(255 - 4));
        let ask = request(&text, "x").note(Note::new("n".repeat(Note::MAX_BYTES)).unwrap());
        held(backend.acquire(&ask).await.unwrap());
        due.push(Renewal::new(ask.ticket(), HOUR * 2, Duration::from_secs(1)));
    }
    for answer in soon(backend.renew(&due)).await {
        assert!(matches!(answer, Ok(Renewed::Held(_))), "{answer:?}");
    }
}
