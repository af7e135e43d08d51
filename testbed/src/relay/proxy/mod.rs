//! A TCP proxy for stores behind a network.

#[cfg(test)]
mod tests;
mod way;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use self::way::{End, Shared, forward};
use super::listening::Listening;
use super::{Direction, Fault, Link};
use crate::verdict::Verdict;

/// What is made of a piece of a server's replies.
pub type Rewrite = Arc<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// Forwards connections to a server as its [`Link`] lets it. Ends when dropped.
#[derive(Debug)]
pub struct Proxy(Listening);

impl Proxy {
    /// Listens on a free port of the loopback for connections to `target`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn start(target: SocketAddr, link: &Arc<Link>) -> Verdict<Self> {
        Self::rewriting(target, link, Arc::new(|_| {})).await
    }

    /// The same to a server of whose replies clients read what `rewrite` makes of each piece: of one that tells addresses.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn rewriting(target: SocketAddr, link: &Arc<Link>, rewrite: Rewrite) -> Verdict<Self> {
        let link = Arc::clone(link);
        let serve = move |client| connection(client, target, Arc::clone(&link), Arc::clone(&rewrite));
        Ok(Self(Listening::start(serve).await?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

async fn connection(mut client: TcpStream, target: SocketAddr, link: Arc<Link>, rewrite: Rewrite) {
    match link.now().fault {
        Fault::Reset => {
            link.hits.add(1);
            return reset(&client);
        }
        Fault::HalfOpen => return silence(client, &link).await,
        _ => {}
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // A proxy must not add Nagle's delay to what it measures.
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let shared = Shared {
        link: &link,
        rewrite: &rewrite,
        replies: watch::Sender::default(),
        answered: AtomicBool::new(true),
    };
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = link.until(|fault| fault == Fault::Reset) => { link.hits.add(1); Some(End::Reset) }
            () = link.until(|fault| fault == Fault::HalfOpen) => None,
            end = forward(from_client, to_server, &shared, Direction::Requests) => Some(end),
            end = forward(from_server, to_client, &shared, Direction::Replies) => Some(end),
        }
    };
    match ended {
        Some(End::Closed) => {}
        Some(End::Reset) => reset(&client),
        None => {
            drop(server);
            silence(client, &link).await;
        }
    }
}

/// Closes with a reset: whoever reads next is told so.
fn reset(client: &TcpStream) {
    // Without it the peer sees an orderly end, which is good enough.
    let _ = client.set_zero_linger();
}

/// Takes what the client sends and does not answer, until the server is there again and knows nothing of this
/// connection.
async fn silence(mut client: TcpStream, link: &Link) {
    link.hits.add(1);
    let mut buffer = vec![0; 16 * 1024];
    let listening = async { while let Ok(1..) = client.read(&mut buffer).await {} };
    tokio::select! {
        () = listening => return,
        () = link.until(|fault| fault != Fault::HalfOpen) => {}
    }
    reset(&client);
}
