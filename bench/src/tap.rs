//! Counts round trips between a client and a server, whatever they speak.
//!
//! A client that sends, and gets something back, and sends again has made two round trips. What it sends in pieces before
//! anything comes back is one; so are requests that it sends together. What is sent without waiting for an answer (a
//! keep-alive, an acknowledgement) counts as well, so the trips of a single operation are best taken as the median of
//! many. Where the client speaks HTTP/2 only what begins a request counts.

mod http2;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use self::http2::Requests;
use crate::subject::Failure;

/// A listener that passes on what it gets, both ways, and counts how often the direction turns to the server.
/// Dropping it cuts all connections.
#[derive(Debug)]
pub struct Tap {
    address: SocketAddr,
    trips: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl Tap {
    /// Listens on a free port of the loopback, for connections to `server`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn start(server: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let trips = Arc::new(AtomicU64::new(0));
        let listening = tokio::spawn(listen(listener, server, Arc::clone(&trips)));
        Ok(Self { address, trips, listening })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many round trips were begun so far.
    #[must_use]
    pub fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, server: SocketAddr, trips: Arc<AtomicU64>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let trips = Arc::clone(&trips);
        connections.spawn(async move {
            // Either end may go at any time: the other one then sees the end of its connection.
            let _ = pass(client, server, trips).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(client: TcpStream, server: SocketAddr, trips: Arc<AtomicU64>) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let answered = AtomicBool::new(true);
    let mut requests = Requests::new();
    let asking = copy(from_client, to_server, |bytes| {
        if requests.begins_in(bytes) && answered.swap(false, Ordering::Relaxed) {
            trips.fetch_add(1, Ordering::Relaxed);
        }
    });
    let answering = copy(from_server, to_client, |_| answered.store(true, Ordering::Relaxed));
    // The end of one direction is the end of both, as clients and servers of stores use them.
    tokio::select! {
        done = asking => done,
        done = answering => done,
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut seen: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let bytes = buffer.get(..count).unwrap_or_default();
        seen(bytes);
        to.write_all(bytes).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn trips_are_turns() -> Result<(), Failure> {
        let echo = TcpListener::bind(("127.0.0.1", 0)).await?;
        let server = echo.local_addr()?;
        tokio::spawn(async move {
            // Answers every four bytes with one.
            let (mut stream, _) = echo.accept().await?;
            let mut four = [0; 4];
            loop {
                stream.read_exact(&mut four).await?;
                stream.write_all(&four[..1]).await?;
            }
            #[allow(unreachable_code, reason = "gives the block its type")]
            Ok::<(), std::io::Error>(())
        });
        let tap = Tap::start(server).await?;
        let mut client = TcpStream::connect(tap.address()).await?;
        client.set_nodelay(true)?;
        let mut one = [0];
        for trip in 1..=3 {
            // In two pieces: one trip nevertheless.
            client.write_all(b"ab").await?;
            client.flush().await?;
            tokio::task::yield_now().await;
            client.write_all(b"cd").await?;
            client.read_exact(&mut one).await?;
            assert_eq!((one, tap.trips()), (*b"a", trip));
        }
        // Two requests at once: one trip, unless the answer to the first overtakes the second.
        client.write_all(b"abcdefgh").await?;
        client.read_exact(&mut [0; 2]).await?;
        assert_eq!(tap.trips(), 4);
        Ok(())
    }
}
