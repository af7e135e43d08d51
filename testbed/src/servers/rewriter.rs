//! A TCP proxy that changes the addresses a server tells, so that a client which follows them stays on its way.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::relay::listening::Listening;
use crate::verdict::Verdict;

/// Which port of the loopback is told in place of which.
pub type Ports = Arc<OnceLock<Vec<(u16, u16)>>>;

/// Forwards connections to a server. Ends when dropped.
#[derive(Debug)]
pub struct Rewriter(Listening);

impl Rewriter {
    /// Listens on a free port of the loopback for connections to `target`. `ports` must be set before one is used.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn start(target: SocketAddr, ports: &Ports) -> Verdict<Self> {
        let ports = Arc::clone(ports);
        Ok(Self(Listening::start(move |client| connection(client, target, Arc::clone(&ports))).await?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

async fn connection(client: TcpStream, target: SocketAddr, ports: Ports) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = tokio::io::copy(&mut from_client, &mut to_server);
    let back = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            let bytes = rewritten(&buffer[..count], ports.get().map_or(&[], Vec::as_slice));
            if to_client.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { _ = there => {}, () = back => {} }
}

/// The three ways in which Redis writes an address: in an error, as a text and a number, as two texts.
fn rewritten(bytes: &[u8], ports: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for before in ["127.0.0.1:", "127.0.0.1\r\n:", "127.0.0.1\r\n$5\r\n"] {
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(before.len()).position(|part| part == before.as_bytes()) {
            at += found + before.len();
            // Ports as the kernel gives them have five digits all.
            let port =
                bytes.get(at..at + 5).and_then(|text| std::str::from_utf8(text).ok()?.parse::<u16>().ok());
            if let Some((_, told)) = ports.iter().find(|(real, _)| Some(*real) == port) {
                bytes.splice(at..at + 5, told.to_string().into_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_address_is_found() {
        let ports = [(40_001, 50_001), (40_002, 50_002)];
        let text = "-MOVED 1 127.0.0.1:40001\r\n$9\r\n127.0.0.1\r\n:40002\r\n$9\r\n127.0.0.1\r\n$5\r\n40001\r\n:40001\r\n127.0.0.1:9";
        let seen = String::from_utf8(rewritten(text.as_bytes(), &ports)).unwrap_or_default();
        let expected = "-MOVED 1 127.0.0.1:50001\r\n$9\r\n127.0.0.1\r\n:50002\r\n$9\r\n127.0.0.1\r\n$5\r\n50001\r\n:40001\r\n127.0.0.1:9";
        assert_eq!(seen, expected);
    }
}
