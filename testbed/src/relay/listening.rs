//! A port of the loopback, and a task for each connection to it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::verdict::{Context as _, Verdict};

/// Ends, and its connections with it, when dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Listening {
    /// Serves connections to a free port.
    pub(crate) async fn start<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Verdict<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for a proxy")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        connections.spawn(serve(client));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}
