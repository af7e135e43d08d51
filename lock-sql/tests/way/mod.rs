//! A way to a server on which connections fail one by one.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// What befalls a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// Nothing goes through any more, and neither end is told.
    Silence,
    /// The client is told that it is broken; the server is not.
    Break,
}

/// Ends when its runtime does.
pub(crate) struct Way {
    port: u16,
    /// In the order in which they were made.
    open: Arc<Mutex<Vec<Option<oneshot::Sender<Blow>>>>>,
}

impl Way {
    /// To a server on this host.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let way = Self { port: listener.local_addr().unwrap().port(), open: Arc::default() };
        let open = Arc::clone(&way.open);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (sender, blow) = oneshot::channel();
                open.lock().unwrap().push(Some(sender));
                tokio::spawn(connection(client, port, blow));
            }
        });
        way
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().unwrap().len()
    }

    /// This happens to the connections of these numbers; the first has 0.
    pub(crate) fn strike(&self, which: std::ops::Range<usize>, blow: Blow) {
        for sender in self.open.lock().unwrap()[which].iter_mut().filter_map(Option::take) {
            let _ = sender.send(blow);
        }
    }
}

async fn connection(mut client: TcpStream, port: u16, blow: oneshot::Receiver<Blow>) {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let blow = tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        Ok(blow) = blow => blow,
    };
    if blow == Blow::Break {
        drop(client);
    }
    // The other ends stay open.
    std::future::pending::<()>().await;
}
