//! A way to the server that counts the commands of clients by kind.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onelock_conformance::verdict::Verdict;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// How many commands have come by.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Of verbs, and what sets up connections.
    pub(crate) verbs: AtomicU64,
    /// Polls for waiters.
    pub(crate) polls: AtomicU64,
    /// Sweeps.
    pub(crate) sweeps: AtomicU64,
    /// Bytes to the server and from it.
    pub(crate) bytes: AtomicU64,
    /// What a connection is told once, to be asked often.
    pub(crate) prepared: AtomicU64,
    /// Connections that are open.
    pub(crate) open: AtomicU64,
}

/// Forwards connections, on a runtime of its own: a test may count the tasks of its runtime. Ends when dropped.
pub(crate) struct Counter {
    address: SocketAddr,
    counts: Arc<Counts>,
    runtime: Option<Runtime>,
}

impl Counter {
    pub(crate) fn start(target: SocketAddr) -> Verdict<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (address, counts) = (listener.local_addr()?, Arc::new(Counts::default()));
        let shared = Arc::clone(&counts);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build()?;
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            let mut all = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                all.spawn(connection(client, target, Arc::clone(&shared)));
            }
        });
        Ok(Self { address, counts, runtime: Some(runtime) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn verbs(&self) -> u64 {
        self.counts.verbs.load(Ordering::SeqCst)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn connection(client: TcpStream, target: SocketAddr, counts: Arc<Counts>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    counts.open.fetch_add(1, Ordering::SeqCst);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let (mut buffer, mut packets) = (vec![0; 64 * 1024], Packets::default());
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            packets.see(&buffer[..count], &counts);
            counts.bytes.fetch_add(count as u64, Ordering::SeqCst);
            if to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            counts.bytes.fetch_add(count as u64, Ordering::SeqCst);
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = there => {}, () = back => {} }
    counts.open.fetch_sub(1, Ordering::SeqCst);
}

/// Cuts a client's stream into packets: three bytes of length, one of sequence (0 begins a command), the payload.
#[derive(Default)]
struct Packets {
    header: Vec<u8>,
    start: Vec<u8>,
    left: usize,
    /// Of each statement that was prepared: its number, which is known once it is asked for, and whether it looks.
    prepared: Vec<(Option<[u8; 4]>, bool)>,
}

const POLLS: &[u8] = b"/* onelock polls */";
const SWEEPS: &[u8] = b"/* onelock sweeps */";
const QUIT: u8 = 1;
const QUERY: u8 = 3;
const PREPARE: u8 = 22;
const EXECUTE: u8 = 23;

impl Packets {
    fn see(&mut self, bytes: &[u8], counts: &Counts) {
        for &byte in bytes {
            if self.left == 0 {
                self.header.push(byte);
                if let [a, b, c, _] = self.header[..] {
                    self.left = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
                    self.start.clear();
                    if self.left == 0 {
                        self.header.clear();
                    }
                }
                continue;
            }
            if self.start.len() <= SWEEPS.len() {
                self.start.push(byte);
            }
            self.left -= 1;
            if self.left == 0 {
                if self.header[3] == 0 {
                    self.count(counts);
                }
                self.header.clear();
            }
        }
    }

    fn count(&mut self, counts: &Counts) {
        let counter = match &self.start[..] {
            [QUERY, text @ ..] if text.starts_with(POLLS) => &counts.polls,
            [QUERY, text @ ..] if text.starts_with(SWEEPS) => &counts.sweeps,
            [QUIT, ..] => return,
            [PREPARE, text @ ..] => {
                self.prepared.push((None, text.starts_with(POLLS)));
                &counts.prepared
            }
            [EXECUTE, a, b, c, d, ..] => {
                // The driver asks for a statement as soon as it is prepared.
                let number = Some([*a, *b, *c, *d]);
                let all = &mut self.prepared;
                let known = all.iter().position(|(known, _)| *known == number);
                let at = known.or_else(|| all.iter().position(|(known, _)| known.is_none()));
                let looks = at.and_then(|at| all.get_mut(at)).is_some_and(|(known, looks)| {
                    *known = number;
                    *looks
                });
                if looks { &counts.polls } else { &counts.verbs }
            }
            _ => &counts.verbs,
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}
