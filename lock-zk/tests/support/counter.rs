//! A proxy that counts what clients send: requests of the protocol, without connecting, pings and the driver's own
//! re-arming of watches, and without the beat of a session that is otherwise silent.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use onelock_conformance::verdict::Verdict;

/// Kept by every connection.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
    by_code: Mutex<BTreeMap<i32, u64>>,
}

impl Counts {
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// All bytes, both ways.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many requests of each code.
    pub(crate) fn by_code(&self) -> BTreeMap<i32, u64> {
        self.by_code.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn frame(&self, frame: &[u8], beat: &str) {
        const SYNC: i32 = 9;
        // Auth, ping, close, both ways to set watches anew, and the list of a session's nodes.
        const SILENT: [i32; 6] = [100, 11, -11, 101, 105, 103];
        let number =
            |at: usize| frame.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_be_bytes);
        let Some(code) = number(4) else { return };
        let path = number(8).and_then(|len| frame.get(12..12 + usize::try_from(len).ok()?));
        if SILENT.contains(&code) || (code == SYNC && path == Some(beat.as_bytes())) {
            return;
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        *self.by_code.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }
}

/// The proxy. Threads, so that it serves clients of any runtime; they end with their connections.
#[derive(Debug)]
pub(crate) struct Counter {
    address: SocketAddr,
    counts: Arc<Counts>,
}

impl Counter {
    /// Counts requests to `target`; `beat` is the path that beats ask for.
    pub(crate) fn start(target: SocketAddr, beat: &str) -> Verdict<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, counts) = (listener.local_addr()?, Arc::new(Counts::default()));
        let (own, beat) = (Arc::downgrade(&counts), beat.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Some(counts)) = (client, own.upgrade()) else { return };
                let Ok(server) = TcpStream::connect(target) else { continue };
                if client.set_nodelay(true).and(server.set_nodelay(true)).is_ok() {
                    serve(client, server, counts, beat.clone());
                }
            }
        });
        Ok(Self { address, counts })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Wakes the listener, which sees that nobody counts any more.
        let counts = std::mem::take(&mut self.counts);
        drop(counts);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(client: TcpStream, server: TcpStream, counts: Arc<Counts>, beat: String) {
    let (Ok(from_server), Ok(to_client)) = (server.try_clone(), client.try_clone()) else { return };
    counts.connections.fetch_add(1, Ordering::SeqCst);
    let received = Arc::clone(&counts);
    let replies = thread::spawn(move || {
        forward(from_server, to_client, |bytes| {
            received.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        });
    });
    thread::spawn(move || {
        let mut pending = Vec::new();
        let mut connected = false;
        forward(client, server, |bytes| {
            counts.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            pending.extend_from_slice(bytes);
            while let Some(length) = pending.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes)
            {
                let end = 4 + length as usize;
                let Some(frame) = pending.get(4..end) else { break };
                if std::mem::replace(&mut connected, true) {
                    counts.frame(frame, &beat);
                }
                pending.drain(..end);
            }
        });
        let _ = replies.join();
        counts.connections.fetch_sub(1, Ordering::SeqCst);
    });
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
