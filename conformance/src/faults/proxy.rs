//! A TCP proxy for stores behind a network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Fault, Link};
use crate::verdict::{Context as _, Verdict};

/// Forwards connections to a server as its [`Link`] lets it. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of the loopback for connections to `target`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn start(target: SocketAddr, link: &Arc<Link>) -> Verdict<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the fault proxy")?;
        let address = listener.local_addr()?;
        let link = Arc::clone(link);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        connections.spawn(connection(client, target, Arc::clone(&link)));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(client: TcpStream, target: SocketAddr, link: Arc<Link>) {
    if link.now() == Fault::Reset {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    // A proxy must not add Nagle's delay to what it measures.
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = link.until(|fault| *fault == Fault::Reset) => {}
        () = forward(from_client, to_server, &link, false) => {}
        () = forward(from_server, to_client, &link, true) => {}
    }
}

/// Ends when one side is closed, or when the stream has a hole that the client must not see.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, link: &Link, replies: bool) {
    let mut buffer = vec![0; 16 * 1024];
    let mut hole = false;
    loop {
        let read = tokio::select! {
            biased;
            () = link.until(|fault| *fault == Fault::None), if hole => return,
            read = from.read(&mut buffer) => read,
        };
        let Ok(count @ 1..) = read else { return };
        link.until(|fault| *fault != Fault::Stall).await;
        if replies && link.now() == Fault::LoseReplies {
            hole = true;
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
