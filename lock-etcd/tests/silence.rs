//! A connection that has died without a word to its ends, as when a gateway on the way has forgotten it.

use std::future::pending;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::leases::client;
use crate::support::server::Member;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, renewal};
use onelock_core::Renewed;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where connections to the server can be made, of which those that stand when this is sent carry nothing more.
async fn relay(server: SocketAddr, dies: &watch::Sender<()>) -> Verdict<SocketAddr> {
    let (listener, dies) = (TcpListener::bind("127.0.0.1:0").await?, dies.clone());
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut dies = dies.subscribe();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(server).await else { return };
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    _ = dies.changed() => pending().await,
                }
            });
        }
    });
    Ok(address)
}

/// However long connecting may take: a connection that answers nothing is left when a request would have been given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_connection_is_left_though_connecting_may_take_long() -> Verdict {
    let (server, dies) = (Member::single(None).await?, watch::Sender::new(()));
    let way = relay(server.address(), &dies).await?;
    let backend = client(&format!("etcd://{way}?request_timeout=1s&connect_timeout=2m")).await?;
    let asked = leased(exclusive(&name("kept")?)?, Duration::from_secs(120));
    let due = [renewal(&asked, held(&backend, &asked).await?.token)];
    dies.send_replace(());
    let end = Instant::now() + PATIENCE;
    loop {
        match backend.renew(&due).await.remove(0) {
            Ok(Renewed::Held(_)) => return Ok(()),
            answer => assert!(Instant::now() < end, "{answer:?}"),
        }
    }
}
