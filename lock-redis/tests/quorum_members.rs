//! The members of a quorum are different servers, however they are spelled.

use std::sync::Arc;

use crate::common::{Server, request, soon};
use onelock_core::driver::Context;
use onelock_core::{Backend, BootClock, Error, ErrorKind, Quorum, Standing};
use tokio::net::{TcpListener, TcpStream};

async fn open(members: [String; 3]) -> Result<Quorum, Error> {
    let url = format!("quorum://?members={}&member_timeout=500ms", members.join("|"));
    onelock_core::quorum::open(
        url.parse().unwrap(),
        &[onelock_redis::DRIVER],
        &[("redis", onelock_redis::RedisGate::of_url)],
        Context::new(Arc::new(BootClock)),
    )
    .await
}

fn at(host: &str, port: u16) -> String {
    format!("redis://{host}:{port}")
}

#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let (one, two) = (Server::start(&[]).await, Server::start(&[]).await);
    let members = [at("127.0.0.1", one.port), at("127.0.0.1", two.port), at("localhost", one.port)];
    let error = soon(async {
        loop {
            // What is too slow to be compared when the quorum is opened is compared later.
            match open(members.clone()).await.map(|quorum| quorum.capabilities().fencing) {
                Err(error) if error.is_retryable() => {}
                opened => return opened.expect_err("one server is two members"),
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("localhost") && text.contains("127.0.0.1") && text.contains("same store"),
        "{text}"
    );
}

/// A member that could not be compared when the quorum was opened has no vote before it is.
#[tokio::test]
async fn a_member_that_comes_late_is_compared_first() {
    let (one, two) = (Server::start(&[]).await, Server::start(&[]).await);
    let late = onelock_conformance::servers::free_port().unwrap();
    let members = [at("127.0.0.1", one.port), at("127.0.0.1", two.port), at("127.0.0.1", late)];
    let quorum = open(members).await.unwrap();
    let relay = TcpListener::bind(("127.0.0.1", late)).await.unwrap();
    let to = one.port;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = relay.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    // The only other server is gone: whoever holds now has two votes of one.
    two.signal("-STOP");
    let error = soon(async {
        loop {
            let attempt = request("order", "x").queue(false);
            match quorum.acquire(&attempt).await {
                Ok(Standing::Held(grant)) => panic!("held as {} by one server of three", grant.token),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => return error,
            }
        }
    })
    .await;
    assert!(error.to_string().contains("same store"), "{error}");
}
