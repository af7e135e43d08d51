//! A way to a server on which connections fail one by one.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::ops::Range;
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
    open: Arc<Mutex<Vec<Option<Order>>>>,
}

/// To a connection: what befalls it. It drops the second sender once nothing more goes through.
type Order = oneshot::Sender<(Blow, oneshot::Sender<()>)>;

impl Way {
    /// To a server on this host.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let way = Self { port: listener.local_addr().unwrap().port(), open: Arc::default() };
        let open = Arc::clone(&way.open);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (sender, order) = oneshot::channel();
                open.lock().unwrap().push(Some(sender));
                tokio::spawn(connection(client, port, order));
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

    /// This happens to the connections of these numbers; the first has 0. It has happened when this returns.
    pub(crate) async fn strike(&self, which: Range<usize>, blow: Blow) {
        let orders: Vec<_> = self.open.lock().unwrap()[which].iter_mut().filter_map(Option::take).collect();
        for order in orders {
            let (struck, happened) = oneshot::channel();
            // One that has ended by itself takes no order.
            let _ = order.send((blow, struck));
            let _ = happened.await;
        }
    }
}

async fn connection(mut client: TcpStream, port: u16, order: oneshot::Receiver<(Blow, oneshot::Sender<()>)>) {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let (blow, struck) = tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        Ok(order) = order => order,
    };
    if blow == Blow::Break {
        drop(client);
    }
    drop(struck);
    // The other ends stay open.
    std::future::pending::<()>().await;
}
